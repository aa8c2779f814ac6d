// SPDX-License-Identifier: Apache-2.0
//
// The collectives of a training step of a Llama, by axis, kind and cause, against their formulas.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh::testing {
namespace {

constexpr int64_t kRows = 4, kLength = 10, kHidden = 24, kVocabulary = 62, kLayers = 3;

LlamaRunOptions Options(const MeshShape& mesh, bool sequence_parallel) {
  LlamaRunOptions options = ThreeLayers(mesh, kVocabulary);
  options.sequence_parallel = sequence_parallel;
  return options;
}

std::vector<int64_t> Tokens(int64_t stride) {
  return StridedIds(kRows * kLength, stride, kVocabulary);
}

// What one rank did in the parts of a step.
struct StepTrace {
  StepTrace(const DeviceMesh& mesh, models::Llama& model) {
    CommTrace all(mesh);
    DTensor logits, loss;
    {
      CommTrace trace(mesh);
      logits = model(ShardedTokens(mesh, kRows, kLength, Tokens(7)));
      forward = trace.events();
    }
    {
      CommTrace trace(mesh);
      loss = CrossEntropy(logits, ShardedTokens(mesh, kRows, kLength, Tokens(11)));
      this->loss = trace.events();
    }
    {
      CommTrace trace(mesh);
      Backward(loss);
      backward = trace.events();
    }
    {
      CommTrace trace(mesh);
      optim::ClipGradNorm(model.Parameters(), 1.0);
      clip = trace.events();
    }
    EXPECT_EQ(all.events().size(),
              forward.size() + this->loss.size() + backward.size() + clip.size());
  }

  using Events = std::vector<CommTrace::Event>;
  static CommTrace::Total Sum(const Events& events, const std::string& axis,
                              const std::string& kind, const std::string& op) {
    CommTrace::Total total;
    for (const CommTrace::Event& event : events) {
      if (event.axis != axis || event.kind != kind || event.op != op) continue;
      ++total.count;
      total.bytes += event.bytes;
    }
    return total;
  }
  // All events but these.
  static size_t Others(const Events& events, const std::vector<std::string>& ops) {
    size_t others = 0;
    for (const CommTrace::Event& event : events) {
      others += std::find(ops.begin(), ops.end(), event.op) == ops.end() ? 1 : 0;
    }
    return others;
  }

  Events forward, loss, backward, clip;
};

void ForEachRank(
    const MeshShape& shape, bool sequence_parallel,
    const std::function<void(const DeviceMesh&, models::Llama&, const StepTrace&)>& check) {
  const LlamaRunOptions options = Options(shape, sequence_parallel);
  const absl::Status status =
      RunRanks(static_cast<int>(shape.NumRanks()), [&](Communicator& world) {
        DeviceMesh mesh = DeviceMesh::Create(world, shape);
        models::Llama model(options.config);
        ParallelizeLlama(model, mesh, options);
        model.Initialize(3);
        StepTrace first(mesh, model);  // Plans and prefetching order are learned.
        StepTrace second(mesh, model);
        check(mesh, model, second);
      });
  EXPECT_TRUE(status.ok()) << status;
}

using Total = CommTrace::Total;

TEST(LlamaCollectives, ABlockAllReducesTwiceEachWayOnTp) {
  ForEachRank(
      {{"dp", 2}, {"tp", 2}}, false, [](const DeviceMesh&, models::Llama&, const StepTrace& trace) {
        const int64_t activation =
            kRows / 2 * kLength * kHidden * 4;  // 2 (p - 1) / p of it is sent with p = 2.
        // Forward: one for the embedding and two a block. Backward: two a block and one for the
        // head's input.
        const Total expected{1 + 2 * kLayers, (1 + 2 * kLayers) * activation};
        EXPECT_EQ(StepTrace::Sum(trace.forward, "tp", "all_reduce", "redistribute"), expected);
        EXPECT_EQ(StepTrace::Sum(trace.backward, "tp", "all_reduce", "redistribute"), expected);
        EXPECT_EQ(StepTrace::Others(trace.forward, {"redistribute", "fsdp_gather"}), 0u);
        EXPECT_EQ(StepTrace::Others(trace.backward, {"redistribute", "fsdp_gather", "fsdp_reduce"}),
                  0u);
      });
}

TEST(LlamaCollectives, SequenceParallelBlocksGatherAndScatterTwiceEachWayOnTp) {
  ForEachRank(
      {{"dp", 2}, {"tp", 2}}, true, [](const DeviceMesh&, models::Llama&, const StepTrace& trace) {
        const int64_t half = kRows / 2 * kLength * kHidden * 4 / 2;  // (p - 1) / p with p = 2.
        // The embedding's output is scattered, the head's input gathered; backward mirrors this.
        const Total gathers{2 * kLayers + 1, (2 * kLayers + 1) * half};
        const Total scatters = gathers;
        EXPECT_EQ(StepTrace::Sum(trace.forward, "tp", "all_gather", "redistribute"), gathers);
        EXPECT_EQ(StepTrace::Sum(trace.forward, "tp", "reduce_scatter", "redistribute"), scatters);
        EXPECT_EQ(StepTrace::Sum(trace.backward, "tp", "all_gather", "redistribute"), gathers);
        EXPECT_EQ(StepTrace::Sum(trace.backward, "tp", "reduce_scatter", "redistribute"), scatters);
        // The gradients of norm weights are summed over tp: one batched all-reduce a unit. Two
        // norms a block, of which this rank holds half of each on dp; one norm in the root.
        const int64_t norm_shard = kHidden / 2 * 4;
        const Total norms{kLayers + 1, (2 * kLayers + 1) * norm_shard};
        EXPECT_EQ(StepTrace::Sum(trace.backward, "tp", "all_reduce", "fsdp_reduce"), norms);
        EXPECT_EQ(StepTrace::Others(trace.forward, {"redistribute", "fsdp_gather"}), 0u);
        EXPECT_EQ(StepTrace::Others(trace.backward, {"redistribute", "fsdp_gather", "fsdp_reduce"}),
                  0u);
      });
}

TEST(LlamaCollectives, LossMovesThreeNumbersARowAndNeverTheLogits) {
  ForEachRank({{"dp", 2}, {"tp", 2}}, false,
              [](const DeviceMesh&, models::Llama&, const StepTrace& trace) {
                const int64_t rows = kRows / 2 * kLength * 4;
                int64_t on_tp = 0, tp_bytes = 0;
                for (const CommTrace::Event& event : trace.loss) {
                  if (event.axis != "tp") continue;
                  EXPECT_EQ(event.kind, "all_reduce");
                  ++on_tp;
                  tp_bytes += event.bytes;
                }
                EXPECT_EQ(on_tp, 3);
                EXPECT_EQ(tp_bytes, 3 * rows);
                EXPECT_EQ(trace.loss.size(), 4u) << "and the count of targets on dp";
              });
}

TEST(LlamaCollectives, ClippingIsOneAllReduceOverTheShardingAxes) {
  ForEachRank({{"dp_replicate", 2}, {"dp", 2}, {"tp", 2}}, false,
              [](const DeviceMesh&, models::Llama&, const StepTrace& trace) {
                ASSERT_EQ(trace.clip.size(), 1u);
                EXPECT_EQ(trace.clip[0].axis, "dp+tp");
                EXPECT_EQ(trace.clip[0].kind, "all_reduce");
              });
}

// Bytes of this rank's shards, and of what they are gathered to along dp.
struct DpBytes {
  int64_t own = 0, whole = 0;
};
DpBytes DpBytesOf(const std::vector<nn::Parameter>& parameters, const DeviceMesh& mesh) {
  DpBytes bytes;
  for (const nn::Parameter& parameter : parameters) {
    const Layout gathered = parameter.layout().With(mesh.shape().Index("dp"), Replicate());
    bytes.own += 4 * parameter.layout().LocalShape(mesh.coord()).NumElements();
    bytes.whole += 4 * gathered.LocalShape(mesh.coord()).NumElements();
  }
  return bytes;
}

TEST(LlamaCollectives, FullyShardSendsTheFormulaOnDpAndReplicas) {
  ForEachRank(
      {{"dp_replicate", 2}, {"dp", 2}, {"tp", 2}}, false,
      [](const DeviceMesh&, models::Llama&, const StepTrace& trace) {
        EXPECT_EQ(StepTrace::Sum(trace.backward, "dp_replicate", "all_reduce", "fsdp_reduce").count,
                  kLayers + 1);
      });
  for (const MeshShape& shape : {MeshShape{{"dp", 2}, {"tp", 2}}, MeshShape{{"dp", 3}},
                                 MeshShape{{"dp_replicate", 2}, {"dp", 2}, {"tp", 2}}}) {
    SCOPED_TRACE(shape.ToString());
    ForEachRank(shape, false,
                [](const DeviceMesh& mesh, models::Llama& model, const StepTrace& trace) {
                  const int64_t others = mesh.Size("dp") - 1;
                  const DpBytes all = DpBytesOf(model.Parameters(), mesh);
                  DpBytes blocks;
                  for (auto& block : model.Blocks()) {
                    const DpBytes own = DpBytesOf(block.Parameters(), mesh);
                    blocks.own += own.own;
                    blocks.whole += own.whole;
                  }
                  // The root stays gathered; the blocks are gathered twice.
                  EXPECT_EQ(StepTrace::Sum(trace.forward, "dp", "all_gather", "fsdp_gather"),
                            (Total{kLayers + 1, others * all.own}));
                  EXPECT_EQ(StepTrace::Sum(trace.backward, "dp", "all_gather", "fsdp_gather"),
                            (Total{kLayers, others * blocks.own}));
                  EXPECT_EQ(StepTrace::Sum(trace.backward, "dp", "reduce_scatter", "fsdp_reduce"),
                            (Total{kLayers + 1, all.whole - all.own}));
                });
  }
}

}  // namespace
}  // namespace shardmesh::testing
