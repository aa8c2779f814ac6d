// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/run_training.h"

#include <cmath>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/examples/training/interrupt.h"
#include "shardmesh/examples/training/rank_exchange.h"
#include "shardmesh/examples/training/sampler.h"

namespace shardmesh::examples {
namespace {

absl::Status Interrupted(int64_t done, int64_t all, std::string_view what) {
  return absl::CancelledError(absl::StrCat("interrupted by ",
                                           std::string(SignalName(InterruptSignal())), " after ",
                                           std::string(what), " ", done, " of ", all));
}

/// What every later step would only repeat: an update has spread it to all weights.
absl::Status CheckFinite(const StepMetrics& metrics, int64_t steps) {
  const bool loss_is_finite = std::isfinite(metrics.loss);
  if (loss_is_finite && std::isfinite(metrics.grad_norm)) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("training stops at step ", metrics.step + 1, " of ", steps, ": the ",
                   loss_is_finite ? "norm of the gradients" : "loss", " is ",
                   loss_is_finite ? metrics.grad_norm : metrics.loss,
                   " (learning rate there: ", metrics.lr, ")"));
}

/// How the run ended: the same on all ranks.
absl::Status TrainAndSample(Communicator& world, const TrainOptions& options, const ByteText& text,
                            const std::vector<TrainObserver*>& all_observers,
                            const CheckpointOptions& checkpoint_options) {
  const auto observers = world.rank() == 0 ? all_observers : std::vector<TrainObserver*>();
  const auto keep_going = [&] { return !AnyRank(world, InterruptSignal() != 0); };

  SHARDMESH_ASSIGN_OR_RETURN(RunCheckpoints checkpoints,
                             RunCheckpoints::Open(checkpoint_options, world));
  Trainer trainer(world, options, text);
  SHARDMESH_RETURN_IF_ERROR(checkpoints.Begin(trainer));
  for (TrainObserver* observer : observers) observer->OnStart(trainer);
  absl::Status end;
  while (trainer.next_step() < options.steps && end.ok()) {
    if (!keep_going()) {
      end = Interrupted(trainer.next_step(), options.steps, "step");
      break;
    }
    const StepMetrics metrics = trainer.Step();
    for (TrainObserver* observer : observers) observer->OnStep(metrics);
    end = CheckFinite(metrics, options.steps);
    if (end.ok()) SHARDMESH_RETURN_IF_ERROR(checkpoints.AfterStep(trainer));
  }
  // Numbers that are not finite are nothing to go on from.
  if (end.ok() || absl::IsCancelled(end)) {
    SHARDMESH_RETURN_IF_ERROR(checkpoints.Finish(trainer));
    if (absl::IsCancelled(end) && checkpoints.saves())
      end = absl::AbortedError(absl::StrCat(end.message(), "; saved"));
  }
  if (end.ok()) SHARDMESH_RETURN_IF_ERROR(checkpoints.Export(trainer));
  const std::vector<std::vector<int64_t>> peaks = trainer.MemoryPeaks();
  for (TrainObserver* observer : observers) observer->OnTrained(peaks);
  if (!end.ok() || options.sample_bytes == 0) return end;

  const SampleOptions sample = {.bytes = options.sample_bytes,
                                .sequence = options.sequence,
                                .temperature = options.temperature,
                                .seed = options.seed};
  const std::string written =
      Sample(trainer.model(), trainer.mesh(), /*prompt=*/"\n", sample, keep_going);
  for (TrainObserver* observer : observers) observer->OnSample(written);
  const auto bytes = static_cast<int64_t>(written.size());
  if (bytes == options.sample_bytes) return absl::OkStatus();
  return Interrupted(bytes, options.sample_bytes, "byte");
}

}  // namespace

absl::Status RunTraining(const TrainOptions& options, const ByteText& text,
                         const std::vector<TrainObserver*>& observers,
                         const CheckpointOptions& checkpoints, Backend backend) {
  // Here as well as in Trainer, so that the message is not that of one rank.
  SHARDMESH_RETURN_IF_ERROR(options.Validate());
  SHARDMESH_RETURN_IF_ERROR(checkpoints.Validate());
  SHARDMESH_RETURN_IF_ERROR(text.CheckHolds(options.sequence));
  std::mutex mutex;
  absl::Status end;  // That of each rank here: all are alike.
  SHARDMESH_RETURN_IF_ERROR(Launch(
      static_cast<int>(options.mesh.NumRanks()),
      [&](Communicator& world) {
        const absl::Status own = TrainAndSample(world, options, text, observers, checkpoints);
        const std::lock_guard lock(mutex);
        end = own;
      },
      {}, backend));
  return end;
}

}  // namespace shardmesh::examples
