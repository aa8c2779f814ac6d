// SPDX-License-Identifier: Apache-2.0
//
// What one training step measured.
#ifndef SHARDMESH_EXAMPLES_TRAINING_STEP_METRICS_H_
#define SHARDMESH_EXAMPLES_TRAINING_STEP_METRICS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

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
  std::vector<int64_t> peak_bytes;  ///< During the step, one per rank.
  TrafficTotals traffic;            ///< Of rank 0, of this step's work alone.
  /// Wall time of this rank, divided in two ways: by phases, in their order, and by activity (GEMM,
  /// other kernels, communication; dispatch is the rest).
  Breakdown phases, activities;

  /// {"step", "loss", "grad_norm", "lr", "tokens_per_s", "step_ms", "peak_bytes": [one per rank],
  /// "collectives": {axis: {kind: {"count", "bytes"}}}}, in this order, on one line. Numbers
  /// that are not finite are null.
  std::string ToJson() const;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_STEP_METRICS_H_
