// SPDX-License-Identifier: Apache-2.0
//
// What a checkpoint holds, whoever wrote it: arrays in boxes that files have, and plain values.
//
//   absl::StatusOr<Contents> contents = Contents::Open("run/step-100");
//   const StoredArray* weight = contents->Find("model.norm.weight");
#ifndef SHARDMESH_CHECKPOINT_CONTENTS_H_
#define SHARDMESH_CHECKPOINT_CONTENTS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::checkpoint {

/// A box of an array, in a file under the array's name.
struct StoredPiece {
  int file = 0;  ///< Index in Contents::files.
  Box box;
  int64_t begin = 0;  ///< Its bytes are [begin, begin + bytes) of the file.
  int64_t bytes = 0;
  std::optional<uint64_t> checksum;  ///< XXH3 of these bytes.
};

struct StoredArray {
  std::string name;
  std::vector<std::string> aliases;
  std::string file_dtype;      ///< As the file spells it: "F32", "U8", ...
  std::optional<DType> dtype;  ///< None of a dtype that Shardmesh does not compute with.
  Dims shape;
  std::string layout;  ///< When it was saved; for people.
  std::vector<StoredPiece> pieces;
  Dims largest_extents;  ///< Of all pieces, in each dim, once they have been arranged.
};

struct StoredFile {
  std::string name;  ///< In the directory.
  int64_t bytes = 0;
  std::optional<uint64_t> header_checksum;  ///< XXH3 of the bytes before the first tensor's.
};

struct OpenOptions {
  /// Of all arrays. Without it who reads a box checks that one: Load does, for its ranks.
  bool check_coverage = true;
};

/// Value type.
struct Contents {
  std::string path;
  std::vector<StoredFile> files;
  std::vector<StoredArray> arrays;
  /// Plain values: integers, doubles, bools, texts and lists; an array within a list is an empty
  /// Tensor here, and in `arrays` under "list.3".
  std::vector<std::pair<std::string, StateValue>> values;

  /// | path                                   | what is opened                                  |
  /// |----------------------------------------|-------------------------------------------------|
  /// | a directory with shardmesh.index.json  | what the index says (docs/checkpoint_format.md) |
  /// | else, one with *.safetensors that have | the boxes that PyTorch's distributed checkpoint |
  /// | DCP_SHARDING_INFO                      | has written                                     |
  /// | anything else                          | as CheckpointReader::Open                       |
  ///
  /// Boxes that do not cover an array once are kDataLoss naming array, box and file. Nothing in the
  /// files is trusted. Errors: kNotFound, kInvalidArgument, kDataLoss, the system's; all name the
  /// file. Pickles (.distcp, .bin, .pt) are kUnimplemented with how to convert them.
  static absl::StatusOr<Contents> Open(const std::string& path, const OpenOptions& options = {});

  /// The text of shardmesh.index.json, without line breaks. Errors: kInvalidArgument naming a name
  /// or a text that is not UTF-8.
  absl::StatusOr<std::string> ToJson() const;
  /// Of such a text; `path` is for messages and stays empty in the result.
  static absl::StatusOr<Contents> FromJson(std::string_view json);
  /// Sorts the arrays and values by name, and the pieces of each array by the begin of their boxes.
  /// Errors: kInvalidArgument naming a name that is there twice.
  absl::Status Arrange();
  /// Arrange(), and whether the pieces of each array cover it. Errors: those of Arrange; as
  /// CheckCoverage of each array, naming it.
  absl::Status Check();
};

inline constexpr const char* kIndexName = "shardmesh.index.json";

/// Whether the boxes cover an array of this shape once.
/// Errors: kDataLoss naming a box that is not covered, or is covered twice.
absl::Status CheckCoverage(const Dims& shape, const std::vector<StoredPiece>& pieces);
/// Whether `boxes`, which lie within `whole`, cover it once. Errors: as above.
absl::Status CheckBoxCoverage(const Box& whole, std::span<const Box> boxes);

}  // namespace shardmesh::checkpoint

#endif  // SHARDMESH_CHECKPOINT_CONTENTS_H_
