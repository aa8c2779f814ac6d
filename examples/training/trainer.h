// SPDX-License-Identifier: Apache-2.0
//
// Trains a small Llama on bytes, with FSDP, HSDP and tensor parallelism along those of their axes
// that the mesh has. It shows how a program combines the layers of Shardmesh.
//
//   Trainer trainer(world, options, text);
//   for (int step = 0; step < options.steps; ++step) StepMetrics metrics = trainer.Step();
#ifndef SHARDMESH_EXAMPLES_TRAINING_TRAINER_H_
#define SHARDMESH_EXAMPLES_TRAINING_TRAINER_H_

#include <cstdint>
#include <vector>

#include "shardmesh/comm/communicator.h"
#include "shardmesh/examples/training/batch.h"
#include "shardmesh/examples/training/byte_text.h"
#include "shardmesh/examples/training/step_metrics.h"
#include "shardmesh/examples/training/train_options.h"
#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/models/llama/llama.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/schedule.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::examples {

/// Belongs to one rank. The world and the text must outlive it.
class Trainer {
 public:
  /// Creates the mesh, the model (sharded and initialised) and the optimizer. Collective.
  /// Errors: throws Error(kInvalidArgument) if the options are not valid, the text does not hold a
  /// sequence, or mesh or model do not fit the world or each other.
  Trainer(Communicator& world, const TrainOptions& options, const ByteText& text);

  const TrainOptions& options() const { return options_; }
  const DeviceMesh& mesh() const { return mesh_; }
  models::Llama& model() { return model_; }
  /// Index of the step that Step() does next.
  int64_t next_step() const { return next_step_; }
  /// All that a run needs to go on, under "model", "optim" and "run": refers to this trainer. The
  /// text "run.options" says on which options the numbers depend; loading another one throws
  /// Error(kFailedPrecondition) naming both.
  StateDict State();
  const optim::AdamW& optimizer() const { return optimizer_; }

  /// Trains on the batch of the next step. The times and collectives in the result do not include
  /// the measurement itself. Collective; `traffic`, `phases` and `activities` are those of the
  /// calling rank, everything else is the same on all ranks.
  StepMetrics Step();

  /// Peak bytes since the last step began: one row per rank, one column per MemoryCategory.
  /// Collective.
  std::vector<std::vector<int64_t>> MemoryPeaks();

 private:
  DTensor Loss(const Batch& batch);
  /// The part of a step that is timed and traced. Returns the loss.
  DTensor Update(const Batch& batch, StepMetrics& metrics);

  Communicator& world_;
  TrainOptions options_;
  const ByteText& text_;
  DeviceMesh mesh_;
  models::Llama model_;
  std::vector<nn::Parameter> parameters_;
  optim::AdamW optimizer_;
  optim::CosineSchedule schedule_;
  int64_t next_step_ = 0;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_TRAINER_H_
