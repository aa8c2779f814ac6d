// SPDX-License-Identifier: Apache-2.0
//
// The same numbers as transformers computes for a GPT-2, also where parameters are frozen
// for some steps and where only adapters are trained (tests/testdata/golden/README.md has the
// recipe).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/models/gpt2/gpt2.h"
#include "shardmesh/models/gpt2/gpt2_tp_plan.h"
#include "shardmesh/nn/load.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/tests/training/golden_file.h"
#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh::testing {
namespace {

struct Precision {
  const char* name;
  DType dtype;
  double logits, gradients, losses, norms, parameters;
  // Of the biases of keys. They shift all scores of a query alike, which changes nothing: their
  // gradient is rounding noise, and Adam scales it up. In f32 nothing but noise is left.
  double key_bias;

  friend void PrintTo(const Precision& precision, std::ostream* os) { *os << precision.name; }
};

// Losses and norms are in the file as f32, rounded to nearest.
constexpr double kF32 = 0x1p-24;
constexpr Precision kPrecisions[] = {
    {"f64", DType::kF64, 1e-10, 1e-10, kF32 + 1e-10, kF32 + 1e-10, 1e-10, 2e-9},
    {"f32", DType::kF32, 1e-5, 1e-5, 2e-6, 2e-5, 3e-4, HUGE_VAL},
};
constexpr int kSteps = 10;
constexpr double kMaxNorm = 4.0;
constexpr int64_t kRows = 4, kLength = 16;  // Of one batch.

struct Setup {
  const char* name;
  MeshShape mesh;
  bool fully_shard;

  friend void PrintTo(const Setup& setup, std::ostream* os) { *os << setup.name; }
};

// Four rows on dp=3: two ranks hold two, the last none.
const Setup kSetups[] = {
    {"one", {{"dp", 1}}, false},
    {"one_fully_shard", {{"dp", 1}}, true},
    {"dp3", {{"dp", 3}}, false},
    {"dp3_fully_shard", {{"dp", 3}}, true},
    {"dp2_tp2", {{"dp", 2}, {"tp", 2}}, false},
    {"dp2_tp2_fully_shard", {{"dp", 2}, {"tp", 2}}, true},
    {"hsdp", {{"dp_replicate", 2}, {"dp", 2}}, true},
};

bool IsFrozen(const std::string& golden, int step, const std::string& parameter) {
  if (golden == "freezing") {
    return step >= 3 && step <= 5 &&
           (parameter.starts_with("transformer.h.0.") || parameter == "transformer.wte.weight");
  }
  if (golden == "adapters") {
    return parameter.find("adapter") == std::string::npos &&
           parameter.find(".ln_") == std::string::npos;
  }
  return false;
}

/// A model without values on `mesh`.
std::unique_ptr<models::Gpt2> MakeModel(const std::string& golden, const Setup& setup, DType dtype,
                                        const DeviceMesh& mesh) {
  const models::Gpt2Config config = {
      .vocab_size = 61, .n_positions = 20, .n_embd = 24, .n_layer = 2, .n_head = 3, .n_inner = 70};
  auto model = std::make_unique<models::Gpt2>(config, dtype);
  const bool adapters = golden == "adapters";
  if (adapters) model->AddAdapters(/*rank=*/2);
  if (mesh.shape().Has("tp")) {
    tp::Parallelize(*model, mesh, "tp", models::Gpt2TpPlan(adapters));
  }
  if (setup.fully_shard) {
    for (models::Gpt2Block& block : model->blocks()) fsdp::FullyShard(block, mesh);
    fsdp::FullyShard(*model, mesh);
  }
  model->PlaceReplicated(mesh);
  return model;
}

/// What a run is compared by, under the names of expected_f64.safetensors.
class Record {
 public:
  void Add(const std::string& name, const DTensor& tensor) {
    values_[name] = FullTensor(tensor).ToVector<double>();
  }
  void AddGradients(const std::string& prefix, const nn::Module& model) {
    for (const auto& [name, parameter] : model.NamedParameters()) {
      if (parameter.data().grad()) Add(prefix + name, parameter.data().grad());
    }
  }
  void AddParameters(const std::string& prefix, const nn::Module& model) {
    for (const auto& [name, parameter] : model.NamedParameters()) {
      Add(prefix + name, parameter.data());
    }
  }
  void Append(const std::string& name, double value) { values_[name].push_back(value); }
  const NamedValues& values() const { return values_; }

 private:
  NamedValues values_;
};

NamedValues TrainOnRank(Communicator& world, const std::string& golden, const Setup& setup,
                        DType dtype) {
  const SafetensorsFile data = OpenGolden("gpt2/" + golden + "/data.safetensors");
  const auto rates = ReadGolden<double>(data, "learning_rates", DType::kF64);
  const DeviceMesh mesh = DeviceMesh::Create(world, setup.mesh);
  const auto batch = [&](const std::string& name, int step) {
    const auto all = ReadGolden<int64_t>(data, name, DType::kI64);
    const auto first = all.begin() + step * kRows * kLength;
    return ShardedTokens(mesh, kRows, kLength, {first, first + kRows * kLength});
  };
  const std::unique_ptr<models::Gpt2> model = MakeModel(golden, setup, dtype, mesh);
  const auto weights = CheckpointReader::Open(GoldenPath("gpt2/" + golden + "/model.safetensors"));
  ThrowIfError(weights.status());
  ThrowIfError(nn::LoadParameters(*model, *weights, {.allow_cast = true}));
  optim::AdamW optimizer(model->Parameters(), {.beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});

  Record record;
  for (int step = 0; step < kSteps; ++step) {
    for (auto& [name, parameter] : model->NamedParameters()) {
      nn::Parameter handle = parameter;
      handle.set_requires_grad(!IsFrozen(golden, step, name));
    }
    const DTensor logits = (*model)(batch("input_ids", step));
    const DTensor loss = CrossEntropy(logits, batch("targets", step));
    Backward(loss);
    if (step == 0) record.Add("logits", logits);
    if (step == 0 || step == 4) record.AddGradients("grad" + std::to_string(step) + ".", *model);
    record.Append("losses", Item(loss));
    record.Append("grad_norms", optim::ClipGradNorm(model->Parameters(), kMaxNorm));
    optimizer.set_lr(rates[step]);
    optimizer.Step();
    if (step == 2 || step == 5) record.AddParameters("step" + std::to_string(step) + ".", *model);
  }
  record.AddParameters("final.", *model);
  return record.values();
}

NamedValues Expected(const std::string& golden) {
  const SafetensorsFile file = OpenGolden("gpt2/" + golden + "/expected_f64.safetensors");
  NamedValues values;
  for (const std::string& name : file.Names()) {
    values[name] = ReadGolden<double>(file, name, DType::kF64);
  }
  return values;
}

std::set<std::string> Names(const NamedValues& values) {
  std::set<std::string> names;
  for (const auto& [name, value] : values) names.insert(name);
  return names;
}

/// The same with zeros for the keys, if these are biases of queries, keys and values.
std::vector<double> WithoutKeys(std::vector<double> values) {
  const auto third = static_cast<std::ptrdiff_t>(values.size()) / 3;
  std::fill(values.begin() + third, values.begin() + 2 * third, 0);
  return values;
}

void ExpectSame(const NamedValues& actual, const NamedValues& expected,
                const Precision& precision) {
  ASSERT_EQ(Names(actual), Names(expected));
  for (const auto& [name, values] : expected) {
    const std::vector<double>& own = actual.at(name);
    double tolerance = precision.parameters;
    if (name == "logits") tolerance = precision.logits;
    if (name == "losses") tolerance = precision.losses;
    if (name == "grad_norms") tolerance = precision.norms;
    const bool is_gradient = name.starts_with("grad0.") || name.starts_with("grad4.");
    if (is_gradient) tolerance = precision.gradients;
    if (name.ends_with("c_attn.bias") && !is_gradient) {
      EXPECT_LE(RelativeError(WithoutKeys(own), WithoutKeys(values)), tolerance) << name;
      tolerance = precision.key_bias;
    }
    EXPECT_LE(RelativeError(own, values), tolerance) << name;
  }
}

class GoldenGpt2 : public ::testing::TestWithParam<std::tuple<const char*, Setup, Precision>> {};

TEST_P(GoldenGpt2, IsReproduced) {
  const auto& [golden, setup, precision] = GetParam();
  std::vector<NamedValues> runs(setup.mesh.NumRanks());
  const absl::Status status =
      RunRanks(static_cast<int>(runs.size()),
               [&, &golden = golden, &setup = setup, &precision = precision](Communicator& world) {
                 runs[world.rank()] = TrainOnRank(world, golden, setup, precision.dtype);
               },
               {.timeout = absl::Minutes(2)});
  ASSERT_TRUE(status.ok()) << status;
  for (size_t rank = 1; rank < runs.size(); ++rank) {
    EXPECT_EQ(runs[rank], runs[0]) << "rank " << rank << " and rank 0 differ";
  }
  ExpectSame(runs[0], Expected(golden), precision);
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenGpt2,
                         ::testing::Combine(::testing::Values("plain", "freezing", "adapters"),
                                            ::testing::ValuesIn(kSetups),
                                            ::testing::ValuesIn(kPrecisions)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name + "_" + std::get<2>(info.param).name;
                         });

}  // namespace
}  // namespace shardmesh::testing
