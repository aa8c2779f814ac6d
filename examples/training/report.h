// SPDX-License-Identifier: Apache-2.0
//
// What a run prints. Whole lines suit a log file; on a terminal the newest step shows in a line
// that is written over.
#ifndef SHARDMESH_EXAMPLES_TRAINING_REPORT_H_
#define SHARDMESH_EXAMPLES_TRAINING_REPORT_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/examples/training/run_training.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::examples {

/// The ranks of a mesh as a grid: the last axis across, the others down.
std::string DescribeMesh(const MeshShape& mesh);

/// One line a parameter: name, tensor and layout, the box of the rank at `coord`. Parameters that
/// differ in a layer's number alone share a line.
std::string DescribeParameters(const nn::Module& model, const Coord& coord);

/// One line an (axis, kind, op): count and bytes.
std::string DescribeTraffic(const TrafficTotals& traffic);

/// One line a rank, one column a category that any rank used.
std::string DescribeMemory(const std::vector<std::vector<int64_t>>& peaks);

/// `text` with all but printable ASCII and line feeds as \xNN.
std::string Printable(std::string_view text);

class Report : public TrainObserver {
 public:
  /// `out` must outlive it.
  Report(std::ostream& out, bool is_terminal) : out_(out), is_terminal_(is_terminal) {}

  void OnStart(Trainer& trainer) override;
  void OnStep(const StepMetrics& metrics) override;
  void OnTrained(const std::vector<std::vector<int64_t>>& memory_peaks) override;
  void OnSample(const std::string& text) override;

 private:
  /// Whether the line of this step stays.
  bool Keeps(int64_t step) const;

  std::ostream& out_;
  bool is_terminal_;
  int64_t total_steps_ = 0;
  std::vector<StepMetrics> steps_;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_REPORT_H_
