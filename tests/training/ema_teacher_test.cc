// SPDX-License-Identifier: Apache-2.0
//
// A student that learns from its own exponential moving average. The teacher is a second sharded
// model: it runs without a graph, has no optimizer, and is written in place between the steps.
#include <gtest/gtest.h>

#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/layer_norm.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/tests/training/mesh_parity.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::testing {
namespace {

constexpr int64_t kInputs = 5, kHidden = 11, kOutputs = 4, kRows = 7;
constexpr double kDecay = 0.75;
constexpr nn::LinearOptions kLinear = {
    .bias = true, .dtype = DType::kF64, .weight_init = {nn::Init::Kind::kNormal, 0, 0.4}};

class Mlp : public nn::Module {
 public:
  explicit Mlp(const DeviceMesh& mesh) {
    RegisterChild("norm", norm_);
    RegisterChild("up", up_);
    RegisterChild("down", down_);
    if (mesh.shape().Has("tp")) {
      tp::Parallelize(*this, mesh, "tp", {{"up", tp::Colwise()}, {"down", tp::Rowwise()}});
    }
    ShardUnit(up_, mesh);
    ShardUnit(*this, mesh);
    PlaceReplicated(mesh);
    Initialize(/*seed=*/1);
  }

 protected:
  Outputs Forward(const Inputs& x) override { return down_(Tanh(up_(norm_(x[0])))); }

 private:
  nn::LayerNorm norm_{kInputs, /*eps=*/1e-5, DType::kF64};
  nn::Linear up_{kInputs, kHidden, kLinear};
  nn::Linear down_{kHidden, kOutputs, kLinear};
};

// teacher = decay * teacher + (1 - decay) * student, shard by shard.
void Follow(const Mlp& teacher, const Mlp& student, const DeviceMesh& mesh) {
  NoGrad no_grad(mesh);
  const std::vector<nn::Parameter> targets = teacher.Parameters(), sources = student.Parameters();
  for (size_t i = 0; i < targets.size(); ++i) {
    MulInPlace(targets[i].data(), kDecay);
    AddInPlace(targets[i].data(), sources[i].data() * (1 - kDecay));
  }
}

TEST(EmaTeacher, TrainsAlikeOnAllMeshes) {
  ExpectSameOnAllMeshes([](const DeviceMesh& mesh) {
    Mlp student(mesh), teacher(mesh);
    for (nn::Parameter& parameter : teacher.Parameters()) parameter.set_requires_grad(false);
    const auto loss = [&](int step) {
      const DTensor x = RandomRows(mesh, {kRows, kInputs}, /*seed=*/step);
      const DTensor noise = RandomRows(mesh, {kRows, kInputs}, /*seed=*/100 + step);
      const DTensor target = RandomRows(mesh, {kRows, kOutputs}, /*seed=*/200 + step);
      DTensor advice;
      {
        NoGrad no_grad(mesh);
        advice = teacher(x);
      }
      const DTensor y = student(x + noise * 0.1);
      return MseLoss(y, target) + MseLoss(y, advice);
    };
    Outcome outcome = Train(student, /*steps=*/8, loss, [&] { Follow(teacher, student, mesh); });
    for (const auto& [name, parameter] : teacher.NamedParameters()) {
      outcome.parameters["teacher." + name] = FullTensor(parameter.data()).ToVector<double>();
      EXPECT_NE(outcome.parameters["teacher." + name], outcome.parameters[name]);
      EXPECT_FALSE(parameter.data().grad()) << name;
    }
    return outcome;
  });
}

}  // namespace
}  // namespace shardmesh::testing
