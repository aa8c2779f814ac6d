// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/run_training.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/examples/training/interrupt.h"
#include "shardmesh/examples/training/rank_exchange.h"
#include "shardmesh/examples/training/sampler.h"

namespace shardmesh::examples {
namespace {

/// Returns the number of steps done: fewer than asked for if the run was interrupted.
int64_t TrainAndSample(Communicator& world, const TrainOptions& options, const ByteText& text,
                       const std::vector<TrainObserver*>& all_observers) {
  const auto observers = world.rank() == 0 ? all_observers : std::vector<TrainObserver*>();
  const auto keep_going = [&] { return !AnyRank(world, Interrupted()); };

  Trainer trainer(world, options, text);
  for (TrainObserver* observer : observers) observer->OnStart(trainer);
  int64_t steps = 0;
  while (steps < options.steps && keep_going()) {
    const StepMetrics metrics = trainer.Step();
    ++steps;
    for (TrainObserver* observer : observers) observer->OnStep(metrics);
  }
  const std::vector<std::vector<int64_t>> peaks = trainer.MemoryPeaks();
  for (TrainObserver* observer : observers) observer->OnTrained(peaks);
  if (steps < options.steps || options.sample_bytes == 0) return steps;

  const SampleOptions sample = {.bytes = options.sample_bytes,
                                .sequence = options.sequence,
                                .temperature = options.temperature,
                                .seed = options.seed};
  const std::string written =
      Sample(trainer.model(), trainer.mesh(), /*prompt=*/"\n", sample, keep_going);
  for (TrainObserver* observer : observers) observer->OnSample(written);
  return steps;
}

}  // namespace

absl::Status RunTraining(const TrainOptions& options, const ByteText& text,
                         const std::vector<TrainObserver*>& observers) {
  // Here as well as in Trainer, so that the message is not that of one rank.
  SHARDMESH_RETURN_IF_ERROR(options.Validate());
  SHARDMESH_RETURN_IF_ERROR(text.CheckHolds(options.sequence));
  std::atomic<int64_t> steps = 0;
  SHARDMESH_RETURN_IF_ERROR(
      RunRanks(static_cast<int>(options.mesh.NumRanks()), [&](Communicator& world) {
        const int64_t done = TrainAndSample(world, options, text, observers);
        if (world.rank() == 0) steps = done;
      }));
  if (steps == options.steps) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat("interrupted after step ", steps.load(), " of ", options.steps));
}

}  // namespace shardmesh::examples
