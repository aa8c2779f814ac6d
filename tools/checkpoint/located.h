// SPDX-License-Identifier: Apache-2.0
//
// Finds and opens the checkpoint that a path stands for.
#ifndef SHARDMESH_TOOLS_CHECKPOINT_LOCATED_H_
#define SHARDMESH_TOOLS_CHECKPOINT_LOCATED_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/tools/checkpoint/console.h"

namespace shardmesh::checkpoint::tool {

enum class Format {
  kShardmesh,    ///< shardmesh.index.json: has plain values and checksums.
  kPyTorch,      ///< Boxes of PyTorch's distributed checkpoint.
  kHuggingFace,  ///< Whole tensors, in a file or several.
};

/// "Shardmesh", "PyTorch distributed", "Hugging Face".
std::string ToString(Format format);

struct Located {
  std::string path;  ///< Of a file or a directory that Contents::Open may open.
  Format format = Format::kShardmesh;
};

/// Reads headers and indexes, no tensor.
///
/// | path                                     | what is meant                                  |
/// |------------------------------------------|------------------------------------------------|
/// | a directory of a CheckpointManager       | the latest step that is whole; later ones that |
/// |                                          | are not are noted on console.err               |
/// | a directory with shardmesh.index.json or | itself                                         |
/// | safetensors files, or a file             |                                                |
///
/// Errors: kNotFound naming the path if it, or a checkpoint in it, does not exist; kUnimplemented
///         for pickles.
absl::StatusOr<Located> Locate(const std::string& path, Console& console);

/// Errors: those of Contents::Open.
absl::StatusOr<Contents> OpenContents(const Located& located);

/// Where a file of the contents is.
std::string PathOf(const Contents& contents, const StoredFile& file);

/// An index may claim more bytes than 63 bits hold: then the largest number.
int64_t SaturatingSum(int64_t a, int64_t b);
/// Of all pieces of an array, or of all arrays.
int64_t BytesOf(const StoredArray& array);
int64_t BytesOf(const Contents& contents);

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_LOCATED_H_
