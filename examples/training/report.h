// SPDX-License-Identifier: Apache-2.0
//
// What a run prints: whole lines in a log file; on a terminal, the newest step overwrites the line
// of the step before.
#ifndef SHARDMESH_EXAMPLES_TRAINING_REPORT_H_
#define SHARDMESH_EXAMPLES_TRAINING_REPORT_H_

#include <array>
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

/// One line per parameter: name, tensor and layout, the box of the rank at `coord`. Parameters
/// whose names differ only in a layer's number share a line.
std::string DescribeParameters(const nn::Module& model, const Coord& coord);

/// One line per (axis, kind, op): count and bytes.
std::string DescribeTraffic(const TrafficTotals& traffic);

/// One line per rank, one column per category that any rank used.
std::string DescribeMemory(const std::vector<std::vector<int64_t>>& peaks);

/// `text` with every byte other than printable ASCII and line feeds written as \xNN.
std::string Printable(std::string_view text);

/// Prints a run as it goes. Its size does not grow with the number of steps. Each function throws
/// Error(kDataLoss) with the system's reason if `out` does not take the text.
class Report : public TrainObserver {
 public:
  /// `out` must outlive the report.
  Report(std::ostream& out, bool is_terminal) : out_(out), is_terminal_(is_terminal) {}

  void OnStart(Trainer& trainer) override;
  void OnStep(const StepMetrics& metrics) override;
  void OnTrained(const std::vector<std::vector<int64_t>>& memory_peaks) override;
  void OnSample(const std::string& text) override;

 private:
  static constexpr size_t kLastLosses = 5;

  void Write(std::string_view text);
  void AddUp(const StepMetrics& metrics);
  /// Whether the line of this step stays.
  bool Keeps(int64_t step) const;

  std::ostream& out_;
  bool is_terminal_;
  int64_t total_steps_ = 0;
  // Of the steps so far.
  size_t steps_ = 0;
  double first_loss_ = 0;
  std::array<double, kLastLosses> last_losses_ = {};  // That of step i at i % kLastLosses.
  double seconds_ = 0;
  // Sums over all steps but the first, which also makes buffers and decisions; its own until then.
  Breakdown phases_, activities_;
  StepMetrics last_;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_REPORT_H_
