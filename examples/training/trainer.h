// SPDX-License-Identifier: Apache-2.0
//
// One rank's share of training a small Llama on bytes, with FSDP, HSDP and tensor parallelism as
// the mesh has the axes: this is how a program puts the layers of Shardmesh together.
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
#include "shardmesh/nn/llama.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/schedule.h"

namespace shardmesh::examples {

/// Belongs to one rank. The world and the text must outlive it.
class Trainer {
 public:
  /// Makes mesh, model (sharded, initialised) and optimizer. Collective.
  /// Errors: throws Error(kInvalidArgument) if the options are not valid, the text does not hold a
  /// sequence, or mesh or model do not fit the world or each other.
  Trainer(Communicator& world, const TrainOptions& options, const ByteText& text);

  const TrainOptions& options() const { return options_; }
  const DeviceMesh& mesh() const { return mesh_; }
  nn::Llama& model() { return model_; }
  const optim::AdamW& optimizer() const { return optimizer_; }

  /// Trains on the batch of the next step. What it measures besides is not part of the times and
  /// collectives in the result. Collective; all ranks get the same but for `traffic`,
  /// `phases` and `activities`, which are their own.
  StepMetrics Step();

  /// Peak bytes since the last step began: one row a rank, one column a MemoryCategory. Collective.
  std::vector<std::vector<int64_t>> MemoryPeaks();

 private:
  DTensor Loss(const Batch& batch);
  /// The work that is timed and traced; returns the loss.
  DTensor Update(const Batch& batch, StepMetrics& metrics);

  Communicator& world_;
  TrainOptions options_;
  const ByteText& text_;
  DeviceMesh mesh_;
  nn::Llama model_;
  std::vector<nn::Parameter> parameters_;
  optim::AdamW optimizer_;
  optim::CosineSchedule schedule_;
  int64_t next_step_ = 0;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_TRAINER_H_
