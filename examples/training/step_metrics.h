// SPDX-License-Identifier: Apache-2.0
//
// What one training step measured, and the file with one JSON object a step.
#ifndef SHARDMESH_EXAMPLES_TRAINING_STEP_METRICS_H_
#define SHARDMESH_EXAMPLES_TRAINING_STEP_METRICS_H_

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/dtensor/comm_trace.h"

namespace shardmesh::examples {

/// Who sent what: on which axis, in which kind of collective, for which op.
struct Traffic {
  std::string axis, kind, op;
  friend auto operator<=>(const Traffic&, const Traffic&) = default;
};
using TrafficTotals = std::map<Traffic, CommTrace::Total>;
TrafficTotals TotalsOf(const CommTrace& trace);

/// Parts of a time: (what, milliseconds).
using Breakdown = std::vector<std::pair<std::string, double>>;

struct StepMetrics {
  int64_t step = 0;      ///< From 0.
  double loss = 0;       ///< Nats per byte, before this step's update.
  double grad_norm = 0;  ///< Before clipping.
  double lr = 0;
  double tokens_per_s = 0;  ///< Of the global batch.
  /// Wall time of forward, loss, backward, clip and optimizer on the slowest rank.
  double step_ms = 0;
  std::vector<int64_t> peak_bytes;  ///< During the step, one a rank.
  TrafficTotals traffic;            ///< Of rank 0, of this step's work alone.
  /// Wall time of this rank, cut in two ways: by phases, in their order, and by what the rank was
  /// doing (GEMM, other kernels, communication and, for the rest, dispatch).
  Breakdown phases, activities;

  /// {"step", "loss", "grad_norm", "lr", "tokens_per_s", "step_ms", "peak_bytes": [one a rank],
  /// "collectives": {axis: {kind: {"count", "bytes"}}}}, in this order, on one line. What is not
  /// finite is null.
  std::string ToJson() const;
};

/// A file of StepMetrics, one line each, written through at once so that it can be followed.
class MetricsFile {
 public:
  /// Replaces what is there.
  /// Errors: kNotFound, one line that names `path`.
  static absl::StatusOr<MetricsFile> Create(const std::string& path);

  /// Throws Error(kDataLoss) naming the file if it could not be written.
  void Append(const StepMetrics& metrics);

 private:
  MetricsFile(std::string path, std::ofstream out) : path_(std::move(path)), out_(std::move(out)) {}

  std::string path_;
  std::ofstream out_;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_STEP_METRICS_H_
