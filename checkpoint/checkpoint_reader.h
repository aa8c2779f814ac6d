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

/// Thread-safe once open. However many files there are, few stay open between reads (those of all
/// readers of the process share a limit of 64).
class CheckpointReader {
 public:
  /// | path                                               | what is opened                 |
  /// |----------------------------------------------------|--------------------------------|
  /// | a directory with model.safetensors                 | this file                      |
  /// | else, a directory with model.safetensors.index.json | the files that the index names |
  /// | a file named *.index.json                          | the files that the index names |
  /// | another file                                       | this safetensors file          |
  ///
  /// An index names files relative to its directory; they lie in it or below. The reader has all
  /// tensors of these files, also those that the index does not list.
  ///
  /// Errors: those of SafetensorsFile::Open; kNotFound if the directory has neither, or a file of
  /// the index does not exist; kInvalidArgument if the index is malformed, leads out of its
  /// directory or does not fit its files, or if two files have a tensor of the same name.
  static absl::StatusOr<CheckpointReader> Open(const std::string& path);

  /// As given to Open.
  const std::string& path() const { return path_; }
  /// Ordered by name.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// File by file, each in the order of its bytes.
  std::vector<std::string> Names() const;
  /// Null if there is no tensor of this name. Its byte range refers to the file that has it.
  const StoredTensor* Find(std::string_view name) const;

  /// Like those of SafetensorsFile.
  absl::Status Read(std::string_view name, Tensor& out, const ReadOptions& options = {}) const;
  absl::Status ReadBox(std::string_view name, const Box& box, Tensor& out,
                       const ReadOptions& options = {}) const;

  /// Bytes taken from all files so far, headers included.
  int64_t bytes_read() const;

 private:
  CheckpointReader(std::string path, std::vector<SafetensorsFile> files);

  /// Fills index_.
  absl::Status IndexNames();
  absl::StatusOr<const SafetensorsFile*> FileOf(std::string_view name) const;

  std::string path_;
  std::vector<SafetensorsFile> files_;
  absl::flat_hash_map<absl::string_view, size_t>
      index_;  // Tensor's name -> index in files_. Keys view names of StoredTensors.
};

}  // namespace shardmesh

#endif  // SHARDMESH_CHECKPOINT_CHECKPOINT_READER_H_
