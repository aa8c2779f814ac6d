// SPDX-License-Identifier: Apache-2.0
//
// A whole training run with all its ranks in this process.
#ifndef SHARDMESH_EXAMPLES_TRAINING_RUN_TRAINING_H_
#define SHARDMESH_EXAMPLES_TRAINING_RUN_TRAINING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "shardmesh/comm/launch.h"
#include "shardmesh/examples/training/byte_text.h"
#include "shardmesh/examples/training/run_checkpoints.h"
#include "shardmesh/examples/training/step_metrics.h"
#include "shardmesh/examples/training/train_options.h"
#include "shardmesh/examples/training/trainer.h"

namespace shardmesh::examples {

/// Follows a run: called on the thread of rank 0, in the order below. What it throws ends the run.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  /// Before the first step. Must do nothing collective.
  virtual void OnStart(Trainer& /*trainer*/) {}
  virtual void OnStep(const StepMetrics& /*metrics*/) {}
  /// After the last step, also when that came early. `memory_peaks` as of Trainer::MemoryPeaks.
  virtual void OnTrained(const std::vector<std::vector<int64_t>>& /*memory_peaks*/) {}
  /// What the trained model wrote, if it was asked to.
  virtual void OnSample(const std::string& /*text*/) {}
};

/// Trains and samples on options.mesh's ranks, threads or processes (Launch), from where
/// `checkpoints` says. Observers see rank 0. A signal ends it between two steps or two bytes of the
/// sample (interrupt.h).
/// Errors: kInvalidArgument for options that are not valid or do not fit the text or each other,
/// kCancelled after a signal, or kAborted if the state of that moment was saved, those of
/// checkpoints,
/// kOutOfRange naming the step after which the loss or the norm of the gradients is not finite,
/// else what the ranks failed with.
absl::Status RunTraining(const TrainOptions& options, const ByteText& text,
                         const std::vector<TrainObserver*>& observers,
                         const CheckpointOptions& checkpoints = {},
                         Backend backend = Backend::kAuto);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_RUN_TRAINING_H_
