// SPDX-License-Identifier: Apache-2.0
//
// A tensor-parallel Llama: its numbers against those of other systems, and its collectives.
#include "shardmesh/models/llama/llama_tp_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/models/llama/llama.h"
#include "shardmesh/nn/load.h"
#include "shardmesh/nn/loss.h"
#include "shardmesh/nn/rms_norm.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"

namespace shardmesh::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Vector = std::vector<double>;

void OnRanks(const MeshShape& shape, const std::function<void(const DeviceMesh&)>& body) {
  const absl::Status status =
      RunRanks(static_cast<int>(shape.NumRanks()),
               [&](Communicator& world) { body(DeviceMesh::Create(world, shape)); });
  EXPECT_TRUE(status.ok()) << status;
}

/// Rows over dp where there is such an axis, replicated over tp.
std::vector<Placement> BatchPlacements(const DeviceMesh& mesh) {
  std::vector<Placement> placements;
  for (const MeshAxis& axis : mesh.shape().axes()) {
    placements.push_back(axis.name == "tp" ? Replicate() : Shard(0));
  }
  return placements;
}

// ---- the golden training ------------------------------------------------------------------------

std::string Golden(const std::string& name, const std::string& file) {
  return "tests/testdata/golden/llama/" + name + "/" + file;
}

Tensor Read(ExecutionContext& context, const SafetensorsFile& file, const std::string& name,
            DType dtype) {
  const StoredTensor* stored = file.Find(name);
  SHARDMESH_CHECK(stored != nullptr) << name;
  Tensor out = Tensor::Empty(context, Dims(stored->shape), dtype);
  ThrowIfError(file.Read(name, out));
  return out;
}

SafetensorsFile OpenGolden(const std::string& name, const std::string& file) {
  absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(Golden(name, file));
  ThrowIfError(opened.status());
  return *std::move(opened);
}

/// The largest difference over the largest magnitude of the expected values.
double Difference(const Vector& values, const Vector& expected) {
  SHARDMESH_CHECK(values.size() == expected.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    worst = std::max(worst, std::abs(values[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

struct Tolerances {
  double logits_and_gradients, losses, norms, weights;
};

void CheckGoldenTraining(const DeviceMesh& mesh, const std::string& name, bool sequence_parallel,
                         DType dtype, const Tolerances& within) {
  ExecutionContext& context = mesh.context();
  const auto config = LlamaConfig::FromFile(Golden(name, "config.json"));
  ThrowIfError(config.status());
  Llama model(*config, {.dtype = dtype});
  if (mesh.shape().Has("tp")) tp::Parallelize(model, mesh, "tp", LlamaTpPlan(sequence_parallel));
  model.PlaceReplicated(mesh);
  const auto weights = CheckpointReader::Open(Golden(name, "model.safetensors"));
  ThrowIfError(weights.status());
  ThrowIfError(nn::LoadParameters(model, *weights, {.allow_cast = true}));
  optim::AdamW optimizer(model.Parameters(), {.beta2 = 0.95, .weight_decay = 0.1});

  const SafetensorsFile data = OpenGolden(name, "data.safetensors");
  const SafetensorsFile golden = OpenGolden(name, "expected_f64.safetensors");
  const auto expected = [&](const std::string& tensor) {
    return Read(context, golden, tensor, DType::kF64).ToVector<double>();
  };
  const auto batch = [&](const std::string& tensor, int step) {
    const Tensor all = Read(context, data, tensor, DType::kI64);
    return Distribute(mesh, all.Narrow(0, step, 1).Squeeze(0), BatchPlacements(mesh));
  };
  const Vector rates = Read(context, data, "learning_rates", DType::kF64).ToVector<double>();
  Vector losses, norms;
  for (int step = 0; step < 10; ++step) {
    const DTensor logits = model(batch("input_ids", step));
    const DTensor loss = nn::CrossEntropy(logits, batch("targets", step));
    Backward(loss);
    losses.push_back(Item(loss));
    if (step == 0) {
      EXPECT_LT(Difference(FullTensor(logits).ToVector<double>(), expected("logits")),
                within.logits_and_gradients);
      for (const auto& [own, parameter] : model.NamedParameters()) {
        const Vector gradient = FullTensor(parameter.data().grad()).ToVector<double>();
        const bool is_nearly_nothing = own.find("k_proj.bias") != std::string::npos;
        EXPECT_LT(Difference(gradient, expected("grad." + own)),
                  within.logits_and_gradients * (is_nearly_nothing ? 1e4 : 1))
            << own;
      }
    }
    norms.push_back(optim::ClipGradNorm(model.Parameters(), 4.0));
    optimizer.set_lr(rates[step]);
    optimizer.Step();
  }
  EXPECT_LT(Difference(losses, expected("losses")), within.losses);
  EXPECT_LT(Difference(norms, expected("grad_norms")), within.norms);
  for (const auto& [own, parameter] : model.NamedParameters()) {
    const bool is_shaky = dtype == DType::kF32 && own.find("k_proj.bias") != std::string::npos;
    EXPECT_LT(Difference(FullTensor(parameter.data()).ToVector<double>(), expected("final." + own)),
              is_shaky ? 5e-2 : within.weights)
        << own;
  }
}

TEST(LlamaTpPlan, TrainsAsOthersDo) {
  const struct {
    MeshShape mesh;
    bool sequence_parallel;
  } runs[] = {
      {{{"dp", 1}}, false}, {{{"tp", 2}}, false}, {{{"dp", 2}, {"tp", 2}}, false},
      {{{"dp", 3}}, false}, {{{"tp", 2}}, true},  {{{"dp", 2}, {"tp", 2}}, true},
  };
  for (const auto& [mesh, sequence_parallel] : runs) {
    for (const std::string name : {"plain", "gqa_tied", "llama3_rope_bias"}) {
      SCOPED_TRACE(name + mesh.ToString() + (sequence_parallel ? " sequence parallel" : ""));
      OnRanks(mesh, [&, sp = sequence_parallel](const DeviceMesh& on) {
        CheckGoldenTraining(on, name, sp, DType::kF64, {1e-11, 1e-11, 1e-11, 1e-9});
        CheckGoldenTraining(on, name, sp, DType::kF32, {1e-5, 2e-6, 2e-5, 3e-4});
      });
    }
  }
}

// Attention tells Parallelize its heads, also those of the input of o_proj.
TEST(LlamaTpPlan, NeedsHeadsThatTheAxisDivides) {
  const LlamaConfig config = {.vocab_size = 11,
                              .hidden_size = 24,
                              .intermediate_size = 8,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 8,
                              .num_key_value_heads = 4,
                              .head_dim = 128};
  const struct {
    int ranks;
    tp::Plan plan;
    std::string module, heads;
  } cases[] = {
      {8, LlamaTpPlan(), "model.layers.0.self_attn.k_proj", "4 heads"},
      {3, LlamaTpPlan(), "model.layers.0.self_attn.q_proj", "8 heads"},
      {3,
       {{"model.layers.*.self_attn.o_proj", tp::Rowwise()}},
       "model.layers.0.self_attn.o_proj",
       "8 heads"},
  };
  for (const auto& [ranks, plan, module, heads] : cases) {
    OnRanks({{"tp", ranks}}, [&, &plan = plan, &module = module,
                              &heads = heads](const DeviceMesh& mesh) {
      Llama model(config);
      const absl::Status status = Catch([&] { tp::Parallelize(model, mesh, "tp", plan); });
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(module), HasSubstr(heads)));
      for (const nn::Parameter& parameter : model.Parameters()) EXPECT_FALSE(parameter.IsPlaced());
    });
  }
}

// ---- collectives --------------------------------------------------------------------------------

/// What moves along tp: activations by the plan's redistributions, gradients of replicated
/// parameters, and the rest, which is the loss.
struct Counts {
  CommTrace::Total all_reduce, all_gather, reduce_scatter, gradients, rest;
};

Counts CountsOf(const CommTrace& trace) {
  Counts counts = {trace.Sum("tp", "all_reduce", "redistribute"),
                   trace.Sum("tp", "all_gather", "redistribute"),
                   trace.Sum("tp", "reduce_scatter", "redistribute"),
                   trace.Sum("tp", "all_reduce", "accumulate_grad"), trace.Sum()};
  for (const CommTrace::Total& known :
       {counts.all_reduce, counts.all_gather, counts.reduce_scatter, counts.gradients}) {
    counts.rest.count -= known.count;
    counts.rest.bytes -= known.bytes;
  }
  return counts;
}

/// Forward, loss and backward of a model with `layers` layers on tp=2.
std::vector<Counts> CountsOfStep(int layers, bool sequence_parallel) {
  std::vector<Counts> counts;
  OnRanks({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    Llama model({.vocab_size = 13,
                 .hidden_size = 12,
                 .intermediate_size = 10,
                 .num_hidden_layers = layers,
                 .num_attention_heads = 4,
                 .num_key_value_heads = 2,
                 .head_dim = 6});
    tp::Parallelize(model, mesh, "tp", LlamaTpPlan(sequence_parallel));
    model.Initialize(1);
    const Tensor ids = Tensor::FromValues<int64_t>(
        mesh.context(), {3, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 2});
    const DTensor batch = Distribute(mesh, ids, {Replicate()});
    CommTrace forward(mesh);
    const DTensor logits = model(batch);
    const Counts forward_counts = CountsOf(forward);
    CommTrace loss_trace(mesh);
    const DTensor loss = nn::CrossEntropy(logits, batch);
    const Counts loss_counts = CountsOf(loss_trace);
    CommTrace backward(mesh);
    Backward(loss);
    if (mesh.coord()[0] == 0) counts = {forward_counts, loss_counts, CountsOf(backward)};
  });
  return counts;
}

constexpr int64_t kActivationBytes = 3 * 5 * 12 * 4;  // batch x sequence x hidden, f32

/// The logits, 13 a row, stay where they are: the loss moves at most three numbers a row (maximum,
/// sum of exponentials, logit of the target) in forward, and one in backward.
void ExpectSmallLoss(const std::vector<Counts>& counts) {
  EXPECT_EQ(counts[0].rest.count, 0);
  EXPECT_GT(counts[1].rest.bytes, 0);
  EXPECT_LE(counts[1].rest.bytes, 3 * 15 * 4);
  EXPECT_LE(counts[2].rest.bytes, 15 * 4);
}

TEST(LlamaTpPlan, MovesFourTensorsABlock) {
  const std::vector<Counts> one = CountsOfStep(1, false), three = CountsOfStep(3, false);
  ASSERT_EQ(one.size(), 3u);
  for (int phase : {0, 2}) {  // Forward and backward.
    EXPECT_EQ(three[phase].all_reduce.count - one[phase].all_reduce.count, 2 * 2);
    // On two ranks an all-reduce sends as many bytes as the tensor has.
    EXPECT_EQ(three[phase].all_reduce.bytes - one[phase].all_reduce.bytes,
              2 * 2 * kActivationBytes);
    // The embedding's output in forward, the gradient of the head's input in backward.
    EXPECT_EQ(one[phase].all_reduce.count, 2 + 1);
    EXPECT_EQ(one[phase].all_reduce.bytes, 3 * kActivationBytes);
    EXPECT_EQ(three[phase].all_gather.count, 0);
    EXPECT_EQ(three[phase].reduce_scatter.count, 0);
    EXPECT_EQ(three[phase].gradients.count, 0);
  }
  ExpectSmallLoss(one);
}

TEST(LlamaTpPlan, MovesHalvesWithSequenceParallelism) {
  const std::vector<Counts> one = CountsOfStep(1, true), three = CountsOfStep(3, true);
  ASSERT_EQ(one.size(), 3u);
  // The sequence of 5 is split 3 and 2: rank 0 sends its 3 rows' worth in an all-gather and the
  // other's 2 in a reduce-scatter.
  const int64_t gather_bytes = kActivationBytes / 5 * 3;
  const int64_t scatter_bytes = kActivationBytes / 5 * 2;
  for (int phase : {0, 2}) {
    EXPECT_EQ(three[phase].all_gather.count - one[phase].all_gather.count, 2 * 2);
    EXPECT_EQ(three[phase].all_gather.bytes - one[phase].all_gather.bytes, 4 * gather_bytes);
    EXPECT_EQ(three[phase].reduce_scatter.count - one[phase].reduce_scatter.count, 2 * 2);
    EXPECT_EQ(three[phase].reduce_scatter.bytes - one[phase].reduce_scatter.bytes,
              4 * scatter_bytes);
    // Embedding and head: one of each, each way.
    EXPECT_EQ(one[phase].all_gather.count, 2 + 1);
    EXPECT_EQ(one[phase].reduce_scatter.count, 2 + 1);
    EXPECT_EQ(three[phase].all_reduce.count, 0);
  }
  // Gradients of norm weights: two a block and the last one.
  EXPECT_EQ(one[2].gradients.count, 3);
  EXPECT_EQ(one[2].gradients.bytes, 3 * 12 * 4);
  EXPECT_EQ(three[2].gradients.count, 7);
  ExpectSmallLoss(one);
}

// ---- norm weights, whose gradient comes from slices of the sequence -----------------------------

/// The gradient of a norm's weight, x [3, 5, 4] being laid out as given; `check` sees it on each
/// rank.
Vector NormGradient(const MeshShape& shape, const std::vector<Placement>& input,
                    const std::vector<Placement>& weight,
                    const std::function<void(const CommTrace& backward)>& check) {
  Vector result;
  OnRanks(shape, [&](const DeviceMesh& mesh) {
    nn::RmsNorm norm(4, 1e-6, DType::kF64);
    nn::Parameter parameter = norm.own_parameters()[0].parameter;
    parameter.Place(mesh, Layout::Make(shape, weight, {4}));
    norm.Initialize(1);
    Vector values, scales;
    for (int i = 0; i < 60; ++i) values.push_back(std::sin(1.0 + i * i));
    for (int i = 0; i < 60; ++i) scales.push_back(std::cos(2.0 + i * i));
    const Tensor x = Tensor::FromValues<double>(mesh.context(), {3, 5, 4}, values);
    const Tensor s = Tensor::FromValues<double>(mesh.context(), {3, 5, 4}, scales);
    const DTensor loss = Sum(Mul(norm(Distribute(mesh, x, input)), Distribute(mesh, s, input)));
    CommTrace trace(mesh);
    Backward(loss);
    check(trace);
    EXPECT_EQ(parameter.data().grad().layout(), parameter.layout());
    const Tensor local = parameter.data().grad().local();
    // Replicas hold the same bits: their maximum and minimum agree.
    for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      for (int axis = 0; axis < shape.num_axes(); ++axis) {
        if (!parameter.layout().placement(axis).IsReplicate() || shape.size(axis) == 1) continue;
        Tensor extreme = Tensor::Empty(mesh.context(), local.shape(), local.dtype());
        mesh.Group(axis).AllReduce({{local, extreme}}, op).Wait();
        EXPECT_EQ(extreme.ToVector<double>(), local.ToVector<double>());
      }
    }
    const Vector whole = FullTensor(parameter.data().grad()).ToVector<double>();
    if (mesh.shape().RankOf(mesh.coord()) == 0) result = whole;
  });
  return result;
}

TEST(NormWeights, HaveTheirGradientReducedOnceOverEachAxis) {
  const Vector expected = NormGradient({{"tp", 1}}, {Replicate()}, {Replicate()},
                                       [](const CommTrace& trace) { EXPECT_EQ(trace.Count(), 0); });
  ASSERT_EQ(expected.size(), 4u);
  // Sharded by FSDP, different sequence slices on the two tp ranks.
  const Vector square =
      NormGradient({{"dp", 2}, {"tp", 2}}, {Shard(0), Shard(1)}, {Shard(0), Replicate()},
                   [](const CommTrace& trace) {
                     EXPECT_EQ(trace.Count("tp", "all_reduce"), 1) << trace.ToString();
                     EXPECT_EQ(trace.Count("dp", "reduce_scatter"), 1) << trace.ToString();
                     EXPECT_EQ(trace.Count(), 2) << trace.ToString();
                   });
  // Four slices of a sequence of five: 2, 2, 1 and nothing.
  const Vector line =
      NormGradient({{"tp", 4}}, {Shard(1)}, {Replicate()}, [](const CommTrace& trace) {
        EXPECT_EQ(trace.Count("tp", "all_reduce"), 1);
        EXPECT_EQ(trace.Count(), 1) << trace.ToString();
      });
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(square[i], expected[i], 1e-14);
    EXPECT_NEAR(line[i], expected[i], 1e-14);
  }
}

}  // namespace
}  // namespace shardmesh::models
