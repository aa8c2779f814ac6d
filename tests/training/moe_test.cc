// SPDX-License-Identifier: Apache-2.0
//
// A mixture of experts, each a FullyShard unit. Each token goes to one expert, so in a step an
// expert is given any number of tokens, or is not called at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/module_list.h"
#include "shardmesh/tests/training/mesh_parity.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::testing {
namespace {

constexpr int64_t kTokens = 6, kFeatures = 7, kInner = 5, kExperts = 5;
constexpr int kSteps = 10;
constexpr nn::LinearOptions kLinear = {.dtype = DType::kF64,
                                       .weight_init = {nn::Init::Kind::kNormal, 0, 0.5}};

class Expert : public nn::Module {
 public:
  Expert() {
    RegisterChild("up", up_);
    RegisterChild("down", down_);
  }

 protected:
  Outputs Forward(const Inputs& x) override { return down_(Silu(up_(x[0]))); }

 private:
  nn::Linear up_{kFeatures, kInner, kLinear};
  nn::Linear down_{kInner, kFeatures, kLinear};
};

// x [tokens, features] -> x + p * expert(x), where the expert is the one of the largest p.
class Moe : public nn::Module {
 public:
  Moe() {
    for (int64_t i = 0; i < kExperts; ++i) experts_.Append(std::make_unique<Expert>());
    RegisterChild("router", router_);
    RegisterChild("experts", experts_);
  }
  nn::ModuleList<Expert>& experts() { return experts_; }
  /// Calls of experts so far.
  int calls() const { return calls_; }

 protected:
  Outputs Forward(const Inputs& inputs) override {
    const DTensor& x = inputs[0];
    const DTensor p = Softmax(router_(x), -1);
    const std::vector<double> scores = FullTensor(p).ToVector<double>();
    std::vector<std::vector<int64_t>> tokens(kExperts);  // By expert.
    std::vector<double> chosen(kTokens * kExperts, 0);   // One-hot.
    for (int64_t token = 0; token < kTokens; ++token) {
      const auto row = scores.begin() + token * kExperts;
      const int64_t expert = std::max_element(row, row + kExperts) - row;
      tokens[expert].push_back(token);
      chosen[token * kExperts + expert] = 1;
    }
    // The experts' outputs one after the other, and the place of each token in them.
    std::vector<DTensor> outputs;
    std::vector<int64_t> place(kTokens);
    int64_t next = 0;
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      if (tokens[expert].empty()) continue;
      for (int64_t token : tokens[expert]) place[token] = next++;
      outputs.push_back(experts_[expert](Embedding(Indices(x.mesh(), tokens[expert]), x)));
      ++calls_;
    }
    const DTensor y = Embedding(Indices(x.mesh(), place), Concat(outputs, /*dim=*/0));
    return x + y * Sum(p * OneHot(x.mesh(), chosen), {-1}, /*keepdim=*/true);
  }

 private:
  static std::vector<Placement> Replicated(const DeviceMesh& mesh) {
    return std::vector<Placement>(mesh.shape().num_axes(), Replicate());
  }
  static DTensor Indices(const DeviceMesh& mesh, const std::vector<int64_t>& values) {
    const Dims shape = {static_cast<int64_t>(values.size())};
    return Distribute(mesh, Tensor::FromValues<int64_t>(mesh.context(), shape, values),
                      Replicated(mesh));
  }
  static DTensor OneHot(const DeviceMesh& mesh, const std::vector<double>& values) {
    return Distribute(mesh, Tensor::FromValues<double>(mesh.context(), {kTokens, kExperts}, values),
                      Replicated(mesh));
  }

  nn::Linear router_{kFeatures, kExperts, kLinear};
  nn::ModuleList<Expert> experts_;
  int calls_ = 0;
};

TEST(Moe, TrainsAlikeOnAllMeshes) {
  ExpectSameOnAllMeshes([](const DeviceMesh& mesh) {
    Moe model;
    if (mesh.shape().Has("tp")) {
      tp::Parallelize(model, mesh, "tp",
                      {{"experts.*.up", tp::Colwise()}, {"experts.*.down", tp::Rowwise()}});
    }
    for (Expert& expert : model.experts()) ShardUnit(expert, mesh);
    ShardUnit(model, mesh);
    model.PlaceReplicated(mesh);
    model.Initialize(/*seed=*/1);
    const Outcome outcome = Train(model, kSteps, [&](int step) {
      const DTensor x = RandomRows(mesh, {kTokens, kFeatures}, /*seed=*/step);
      return MseLoss(model(x), RandomRows(mesh, {kTokens, kFeatures}, /*seed=*/100 + step));
    });
    EXPECT_GT(model.calls(), kSteps) << "one expert took all tokens";
    EXPECT_LT(model.calls(), kSteps * kExperts) << "no expert was left out";
    return outcome;
  });
}

}  // namespace
}  // namespace shardmesh::testing
