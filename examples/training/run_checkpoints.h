// SPDX-License-Identifier: Apache-2.0
//
// What a training run leaves behind and begins with: checkpoints of its own, weights of others.
#ifndef SHARDMESH_EXAMPLES_TRAINING_RUN_CHECKPOINTS_H_
#define SHARDMESH_EXAMPLES_TRAINING_RUN_CHECKPOINTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/manager.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/examples/training/trainer.h"

namespace shardmesh::examples {

struct CheckpointOptions {
  std::string directory;        ///< Of the run's checkpoints; "": none.
  int64_t every = 0;            ///< Steps between two; 0: one at the end alone.
  int64_t keep = 3;             ///< So many of the latest.
  std::string resume = "auto";  ///< "auto": from the latest, if any; "never"; or a checkpoint.
  std::string init_from;        ///< Weights to begin with, where nothing is resumed.
  std::string export_to;        ///< A directory that gets the trained model at the end.

  /// Errors: kInvalidArgument, one line that names the flag of train_llama.
  absl::Status Validate() const;
};

/// Belongs to a rank; all methods are collective.
class RunCheckpoints {
 public:
  /// Errors: as CheckpointManager::Open.
  static absl::StatusOr<RunCheckpoints> Open(const CheckpointOptions& options, Communicator& world);

  /// Brings the trainer to where the run goes on. Errors: as checkpoint::Load and
  /// nn::LoadParameters.
  absl::Status Begin(Trainer& trainer);
  /// Saves if it is time to. Errors: as checkpoint::Save.
  absl::Status AfterStep(Trainer& trainer);
  /// Saves what is not saved yet, and waits for it. Errors: as checkpoint::Save.
  absl::Status Finish(Trainer& trainer);
  /// Of the trained model. Errors: as checkpoint::ExportHuggingFace.
  absl::Status Export(Trainer& trainer);
  bool saves() const { return manager_ != nullptr; }

 private:
  explicit RunCheckpoints(const CheckpointOptions& options) : options_(options) {}

  CheckpointOptions options_;
  std::unique_ptr<checkpoint::CheckpointManager> manager_;
  int64_t saved_step_ = -1;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_RUN_CHECKPOINTS_H_
