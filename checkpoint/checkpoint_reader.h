// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a model, in one safetensors file or spread over several as Hugging Face does it.
//
//   absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open("Llama-3.1-8B");
//   absl::Status status = reader->ReadBox("model.norm.weight", box, shard);
#ifndef SHARDMESH_CHECKPOINT_CHECKPOINT_READER_H_
#define SHARDMESH_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh {

/// Thread-safe once open. It keeps all its files open: ranks of one process do well to share one.
class CheckpointReader {
 public:
  /// | path                                               | what is opened                 |
  /// |----------------------------------------------------|--------------------------------|
  /// | a directory with model.safetensors                 | this file                      |
  /// | else, a directory with model.safetensors.index.json | the files that the index names |
  /// | a file named *.index.json                          | the files that the index names |
  /// | another file                                       | this safetensors file          |
  ///
  /// Files are named by an index relative to its directory and lie in it or below. All their
  /// tensors are here, also those that the index does not list.
  ///
  /// Errors: those of SafetensorsFile::Open; kNotFound if the directory has neither, or a file of
  /// the index is not there; kInvalidArgument if the index is not one, leads out of its directory
  /// or does not fit its files, or if two files have a tensor of one name.
  static absl::StatusOr<CheckpointReader> Open(const std::string& path);

  /// As given to Open.
  const std::string& path() const { return path_; }
  /// Ordered by name.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// File by file, each in the order of its bytes.
  std::vector<std::string> Names() const;
  /// Null if there is no tensor of this name. Its byte range is that in its own file.
  const StoredTensor* Find(std::string_view name) const;

  /// As those of SafetensorsFile.
  absl::Status Read(std::string_view name, Tensor& out) const;
  absl::Status ReadBox(std::string_view name, const Box& box, Tensor& out) const;

  /// Bytes taken from all files so far, headers included.
  int64_t bytes_read() const;

 private:
  CheckpointReader(std::string path, std::vector<SafetensorsFile> files);

  /// Fills index_.
  absl::Status IndexNames();
  absl::StatusOr<const SafetensorsFile*> FileOf(std::string_view name) const;

  std::string path_;
  std::vector<SafetensorsFile> files_;
  absl::flat_hash_map<absl::string_view, size_t> index_;  // Name, in the file -> file.
};

}  // namespace shardmesh

#endif  // SHARDMESH_CHECKPOINT_CHECKPOINT_READER_H_
