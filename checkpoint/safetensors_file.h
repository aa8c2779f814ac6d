// SPDX-License-Identifier: Apache-2.0
//
// Reading a safetensors file. Each rank reads its own box of each tensor; of other bytes it reads
// only gaps shorter than a page.
//
//   absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open("model.safetensors");
//   Tensor shard = Tensor::Empty(context, box.Extents(), DType::kBF16);
//   absl::Status status = file->ReadBox("model.embed_tokens.weight", box, shard);
//
// A model in several files: checkpoint/checkpoint_reader.h. The format: docs/checkpoint_format.md.
#ifndef SHARDMESH_CHECKPOINT_SAFETENSORS_FILE_H_
#define SHARDMESH_CHECKPOINT_SAFETENSORS_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "shardmesh/checkpoint/safetensors_header.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh {

namespace internal {
class InputFile;
}
namespace checkpoint {
class FileSystem;
}

struct ReadOptions {
  /// Convert elements to the dtype of the tensor that is read into. Without it, another dtype than
  /// the stored one is an error, as a conversion may lose what the file holds.
  bool allow_cast = false;
  /// Of ReadBoxes: bytes between two boxes, fewer than a page, may be read to read both at once.
  bool read_gaps = true;
};

/// A box of a tensor, and memory for its elements.
struct BoxInMemory {
  std::string_view name;
  Box box;
  DType dtype = DType::kF32;  ///< Of the memory.
  void* data = nullptr;       ///< Of box.NumElements() elements, row-major.
};

/// Thread-safe once open: ranks may share one or open their own. The content is not trusted: any
/// bytes at all give either tensors or a Status that names the file and, if possible, the tensor.
///
/// The process keeps 64 files open at most between reads. One that was closed meanwhile is opened
/// again when it is read; it must still be the same file then.
class SafetensorsFile {
 public:
  /// Reads and checks the header. `seam` sees each read, if it is given, and must outlive the file.
  ///
  /// Errors: the system's (kNotFound, kPermissionDenied, ...); kInvalidArgument if `path` is not a
  /// regular file or not safetensors.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path,
                                              checkpoint::FileSystem* seam = nullptr);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::string& path() const;
  /// In the order of their bytes in the file.
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  std::vector<std::string> Names() const;
  /// Null if there is no tensor of this name.
  const StoredTensor* Find(std::string_view name) const;
  /// The free text under "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  /// Reads a whole tensor: ReadBox of all of it.
  absl::Status Read(std::string_view name, Tensor& out, const ReadOptions& options = {}) const;

  /// Reads the elements of `box` into `out`. With `allow_cast` they are converted to its dtype:
  ///
  /// | dtype of out   | a stored value                                                       |
  /// |----------------|----------------------------------------------------------------------|
  /// | floating-point | is rounded to nearest, ties to even, as ops::Cast does; a finite one |
  /// |                | that would become infinite is refused                                |
  /// | integer, bool  | must stay the same                                                   |
  ///
  /// Shape:  out is contiguous, on the CPU, and has the shape box.Extents().
  /// Cost:   one read per contiguous run of the box; runs closer than a page are read together,
  ///         with the bytes between them.
  /// Errors: kNotFound (no such tensor), kInvalidArgument (box or out do not fit, or out has
  ///         another dtype without allow_cast), kUnimplemented (a dtype that Shardmesh does not
  ///         compute with, or more than Dims::kMaxRank dims), kOutOfRange (an element that the
  ///         dtype of out does not represent, see above; a bool that is not 0 or 1), kDataLoss (the
  ///         file was truncated, written to or, if it had to be opened again, replaced). The
  ///         content of `out` is undefined after kOutOfRange, kDataLoss or an error of the system.
  absl::Status ReadBox(std::string_view name, const Box& box, Tensor& out,
                       const ReadOptions& options = {}) const;

  /// ReadBox of each, in this order. The caller counts the write of a storage.
  ///
  /// Cost:   as ReadBox; small boxes that follow each other in the file are read together.
  absl::Status ReadBoxes(std::span<const BoxInMemory> boxes, const ReadOptions& options = {}) const;

  /// Bytes read from the file so far by all threads, header included.
  int64_t bytes_read() const;

 private:
  SafetensorsFile(std::unique_ptr<const internal::InputFile> file, SafetensorsHeader header);
  absl::Status NoTensor(std::string_view name) const;
  /// An error with file and tensor in front.
  absl::Status In(const StoredTensor& tensor, const absl::Status& status) const;

  std::unique_ptr<const internal::InputFile> file_;
  SafetensorsHeader header_;
  absl::flat_hash_map<absl::string_view, size_t> index_;  // By the names in header_.tensors.
};

}  // namespace shardmesh

#endif  // SHARDMESH_CHECKPOINT_SAFETENSORS_FILE_H_
