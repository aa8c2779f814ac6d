// SPDX-License-Identifier: Apache-2.0
//
// The file with one JSON object per training step.
#ifndef SHARDMESH_EXAMPLES_TRAINING_METRICS_FILE_H_
#define SHARDMESH_EXAMPLES_TRAINING_METRICS_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "shardmesh/examples/training/step_metrics.h"

namespace shardmesh::examples {

/// Each line reaches the system in one write, so the file can be followed. It holds whole lines
/// only: where a disk fills up in the middle of one, its beginning is removed.
class MetricsFile {
 public:
  /// Replaces what is there. Does not wait for the reader of a pipe.
  /// Errors: the system's (kNotFound, kPermissionDenied, ...), one line that names `path`.
  static absl::StatusOr<MetricsFile> Create(const std::string& path);
  MetricsFile(MetricsFile&& other) noexcept;
  MetricsFile& operator=(MetricsFile&&) = delete;
  ~MetricsFile();

  /// Throws Error naming the file and the system's reason if the line could not be written.
  void Append(const StepMetrics& metrics);

 private:
  MetricsFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;         // -1 once moved from.
  off_t whole_lines_ = 0;  // Length of what was written, in bytes.
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_METRICS_FILE_H_
