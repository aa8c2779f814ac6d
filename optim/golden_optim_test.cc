// SPDX-License-Identifier: Apache-2.0
//
// Six steps of every optimizer against what PyTorch computes (tests/testdata/optim/README.md), with
// parameters in layouts of every kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/optim/adam.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/lion.h"
#include "shardmesh/optim/muon.h"
#include "shardmesh/optim/sgd.h"

namespace shardmesh::optim {
namespace {

using Json = nlohmann::json;
using shardmesh::testing::GlobalValue;
using shardmesh::testing::OnMesh;
using shardmesh::testing::Place;

constexpr int kSteps = 6;
constexpr char kFolder[] = "tests/testdata/optim/";

const SafetensorsFile& File() {
  static const SafetensorsFile file = [] {
    absl::StatusOr<SafetensorsFile> opened =
        SafetensorsFile::Open(std::string(kFolder) + "tensors.safetensors");
    ThrowIfError(opened.status());
    return *std::move(opened);
  }();
  return file;
}

GlobalValue Read(const std::string& name, DType dtype = DType::kF64) {
  const StoredTensor* stored = File().Find(name);
  if (stored == nullptr) Throw(absl::StatusCode::kNotFound, "no tensor ", name);
  ExecutionContext context;
  Tensor tensor = Tensor::Empty(context, Dims(stored->shape), DType::kF64);
  ThrowIfError(File().Read(name, tensor));
  return {.shape = tensor.shape(), .dtype = dtype, .values = tensor.ToVector<double>()};
}

std::vector<Json> Cases() {
  std::ifstream in(std::string(kFolder) + "cases.json");
  return Json::parse(in).get<std::vector<Json>>();
}

// Sets what a case (or one of its groups) says.
void Take(const Json& given, AdamWOptions& o) {
  if (given.contains("lr")) o.lr = given["lr"];
  if (given.contains("betas")) o.beta1 = given["betas"][0], o.beta2 = given["betas"][1];
  if (given.contains("eps")) o.eps = given["eps"];
  if (given.contains("weight_decay")) o.weight_decay = given["weight_decay"];
  if (given.contains("amsgrad")) o.amsgrad = given["amsgrad"];
}

std::unique_ptr<Optimizer> MakeAdamW(const Json& c, const std::vector<nn::Parameter>& parameters) {
  AdamWOptions options;
  Take(c, options);
  std::vector<ParameterGroup<AdamWOptions>> groups;
  for (const Json& group : c.value("groups", Json::array())) {
    groups.push_back({.parameters = group["parameters"].get<std::vector<std::string>>(),
                      .change = [group](AdamWOptions& o) { Take(group, o); }});
  }
  return std::make_unique<AdamW>(parameters, options, groups);
}

std::unique_ptr<Optimizer> Make(const Json& c, const std::vector<nn::Parameter>& parameters) {
  const std::string optimizer = c["optimizer"];
  if (optimizer == "AdamW") return MakeAdamW(c, parameters);
  if (optimizer == "Adam (L2)") {
    return std::make_unique<Adam>(parameters, AdamOptions{.lr = c["lr"],
                                                          .beta1 = c["betas"][0],
                                                          .beta2 = c["betas"][1],
                                                          .eps = c["eps"],
                                                          .weight_decay = c["weight_decay"]});
  }
  if (optimizer == "SGD") {
    return std::make_unique<Sgd>(parameters,
                                 SgdOptions{.lr = c["lr"],
                                            .momentum = c.value("momentum", 0.0),
                                            .weight_decay = c.value("weight_decay", 0.0),
                                            .dampening = c.value("dampening", 0.0),
                                            .nesterov = c.value("nesterov", false)});
  }
  if (optimizer == "Lion") {
    return std::make_unique<Lion>(parameters, LionOptions{.lr = c["lr"],
                                                          .beta1 = c["betas"][0],
                                                          .beta2 = c["betas"][1],
                                                          .weight_decay = c["weight_decay"]});
  }
  if (optimizer == "Muon") {
    return std::make_unique<Muon>(parameters, MuonOptions{.lr = c["lr"],
                                                          .momentum = c["momentum"],
                                                          .weight_decay = c["weight_decay"],
                                                          .nesterov = c["nesterov"],
                                                          .ns_steps = c["ns_steps"]});
  }
  ThrowInvalid("no optimizer ", optimizer);
}

// Shards of the first and the last dim, as far as a parameter has them: {0, -1} on [5, 3] is
// [S(0), S(1)], on [7] it is [S(0), S(0)].
struct Setting {
  MeshShape mesh;
  std::vector<Placement> placements;
};

std::vector<Setting> Settings() {
  const MeshShape square = {{"dp", 2}, {"tp", 2}};
  return {
      {{{"dp", 1}}, {Replicate()}},
      {{{"dp", 2}}, {Shard(0)}},
      {{{"dp", 3}}, {Shard(-1)}},
      {{{"dp", 5}}, {Shard(0)}},  // Of most parameters some ranks hold nothing.
      {square, {Shard(0), Shard(-1)}},
      {square, {Replicate(), Shard(0)}},
      {square, {Shard(0), Shard(0)}},
  };
}

void ExpectClose(const DTensor& actual, const GlobalValue& expected, double tolerance,
                 const std::string& what) {
  const std::vector<double> values = FullTensor(actual).ToVector<double>();
  EXPECT_TRUE(shardmesh::testing::AreClose(values, expected.values, tolerance))
      << what << " of " << actual.ToString();
}

// The names that PyTorch has for what a state is called here.
std::string StoredName(const std::string& optimizer, const std::string& state) {
  return optimizer == "Lion" && state == "exp_avg" ? "m" : state;
}

void RunCase(const Json& c, const DeviceMesh& mesh, const Setting& setting, DType dtype,
             double tolerance) {
  const std::string id = c["case"];
  const auto names = c["parameters"].get<std::vector<std::string>>();
  std::vector<nn::Parameter> parameters;
  for (const std::string& name : names) {
    const GlobalValue init = Read(id + "/" + name + "/init", dtype);
    nn::Parameter parameter(init.shape, dtype, nn::Init::Constant(0));
    parameter.set_name(name);
    parameter.Place(mesh, Layout::Make(mesh.shape(), setting.placements, init.shape));
    parameter.SetData(Place(mesh, parameter.layout(), init));
    parameters.push_back(parameter);
  }
  const std::unique_ptr<Optimizer> optimizer = Make(c, parameters);
  for (int k = 0; k < kSteps; ++k) {
    const std::string step = std::to_string(k);
    if (c.contains("lrs") && !c["lrs"].is_null()) optimizer->set_lr(c["lrs"][k]);
    for (const nn::Parameter& parameter : parameters) {
      if (k == 3 && parameter.name() == "one" && c.contains("note")) continue;
      const GlobalValue gradient = Read(id + "/" + parameter.name() + "/grad" + step, dtype);
      DTensor leaf = parameter.data();
      leaf.SetGrad(Place(mesh, leaf.layout(), gradient));
    }
    optimizer->Step();
    for (const nn::Parameter& parameter : parameters) {
      ExpectClose(parameter.data(), Read(id + "/" + parameter.name() + "/step" + step), tolerance,
                  id + "/" + parameter.name() + " after step " + step);
    }
  }
  // The state is what PyTorch has, under its names.
  const StateDict state = optimizer->State();
  int num_tensors = 0;
  for (const StateEntry& entry : state.entries()) {
    const StateValue value = entry.Get();
    const auto* tensor = std::get_if<DTensor>(&value);
    if (tensor == nullptr) continue;
    const size_t begin = std::string("state.").size(), dot = entry.name.find('.', begin);
    const std::string stored = id + "/" + entry.name.substr(begin, dot - begin) + "/" +
                               StoredName(optimizer->name(), entry.name.substr(dot + 1));
    ExpectClose(*tensor, Read(stored), tolerance, stored);
    ++num_tensors;
  }
  const auto num_stored = std::count_if(
      File().tensors().begin(), File().tensors().end(), [&](const StoredTensor& stored) {
        const std::string& name = stored.name;
        return name.starts_with(id + "/") && name.find("/init") == std::string::npos &&
               name.find("/grad") == std::string::npos && name.find("/step") == std::string::npos;
      });
  EXPECT_EQ(num_tensors, num_stored) << id;
  if (c.contains("note") && optimizer->name() != "Sgd") {
    EXPECT_EQ(state.Integer("state.matrix.step"), kSteps);
    EXPECT_EQ(state.Integer("state.one.step"), kSteps - 1);
  }
}

TEST(GoldenOptim, GivesPyTorchsNumbersInF64OnAnyMesh) {
  const std::vector<Json> cases = Cases();
  ASSERT_EQ(cases.size(), 10u);
  for (const Setting& setting : Settings()) {
    OnMesh(setting.mesh, [&](const DeviceMesh& mesh) {
      for (const Json& c : cases) {
        const double tolerance = c["optimizer"] == "Muon" ? 1e-10 : 1e-12;
        RunCase(c, mesh, setting, DType::kF64, tolerance);
      }
    });
  }
}

TEST(GoldenOptim, GivesThemInF32AsFarAsItHasDigits) {
  for (const Setting& setting : Settings()) {
    OnMesh(setting.mesh, [&](const DeviceMesh& mesh) {
      for (const Json& c : Cases()) {
        if (c["optimizer"] == "AdamW" || c["optimizer"] == "SGD")
          RunCase(c, mesh, setting, DType::kF32, 2e-6);
      }
    });
  }
}

}  // namespace
}  // namespace shardmesh::optim
