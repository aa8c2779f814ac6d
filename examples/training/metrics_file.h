// SPDX-License-Identifier: Apache-2.0
//
// The file with one JSON object per training step.
#ifndef SHARDMESH_EXAMPLES_TRAINING_METRICS_FILE_H_
#define SHARDMESH_EXAMPLES_TRAINING_METRICS_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "shardmesh/examples/training/step_metrics.h"

namespace shardmesh::examples {

/// Each line reaches the system in one write, so the file can be followed. It holds whole lines
/// only: where a disk fills up in the middle of one, its beginning is removed.
class MetricsFile {
 public:
  /// What is there stays until KeepBefore. Does not wait for the reader of a pipe.
  /// Errors: the system's (kNotFound, kPermissionDenied, ...), one line that names `path`.
  static absl::StatusOr<MetricsFile> Open(const std::string& path);
  MetricsFile(MetricsFile&& other) noexcept;
  MetricsFile& operator=(MetricsFile&&) = delete;
  ~MetricsFile();

  /// Before the first line of a run that begins with `step`: keeps the leading lines that have
  /// steps before it, in ascending order, and removes the rest. So a run that goes on from a
  /// checkpoint has each step once, and one from step 0 has a new file. Nothing for a pipe or a
  /// device. Throws Error naming the file and the system's reason.
  void KeepBefore(int64_t step);
  /// Throws Error naming the file and the system's reason if the line could not be written.
  void Append(const StepMetrics& metrics);

 private:
  MetricsFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;         // -1 once moved from.
  off_t whole_lines_ = 0;  // Length of what is kept and was written, in bytes.
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_METRICS_FILE_H_
