// SPDX-License-Identifier: Apache-2.0
//
// Expert parallelism: experts live along "ep", each sharded over "dp"; the dense layers are sharded
// over dp x ep as one group, and so is the batch. Tokens are gathered along "ep" before the experts
// and their outputs reduced and scattered after them, all by layouts.
#include <gtest/gtest.h>

#include <vector>

#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/tests/training/mesh_parity.h"

namespace shardmesh::testing {
namespace {

constexpr int64_t kTokens = 12, kFeatures = 7, kInner = 5, kExperts = 6;
constexpr nn::LinearOptions kLinear = {.dtype = DType::kF64,
                                       .weight_init = {nn::Init::Kind::kNormal, 0, 0.5}};

// x [tokens, features], p [tokens, experts] -> sum over e of p[:, e] * expert e of x.
class Experts : public nn::Module {
 public:
  Experts() {
    up_ = RegisterParameter("up", {kExperts, kFeatures, kInner}, DType::kF64, kLinear.weight_init);
    down_ =
        RegisterParameter("down", {kExperts, kInner, kFeatures}, DType::kF64, kLinear.weight_init);
  }
  /// Experts are split along "ep".
  void Place(const DeviceMesh& mesh) {
    for (nn::Parameter* weight : {&up_, &down_}) {
      const Layout replicated = Layout::Replicated(mesh.shape(), weight->shape());
      weight->Place(mesh, replicated.With(mesh.shape().Index("ep"), Shard(0)));
    }
  }

 protected:
  Outputs Forward(const Inputs& inputs) override {
    const DTensor x = WholeAlongEp(inputs[0]), p = WholeAlongEp(inputs[1]);
    const DTensor each =
        Expand(Reshape(x, {1, kTokens, kFeatures}), {kExperts, kTokens, kFeatures});
    const DTensor y = MatMul(Silu(MatMul(each, up_.active())), down_.active());
    return Sum(Mul(y, Reshape(Transpose(p, 0, 1), {kExperts, kTokens, 1})), {0});
  }

 private:
  static DTensor WholeAlongEp(const DTensor& x) {
    const MeshShape& shape = x.mesh().shape();
    if (!shape.Has("ep")) return x;
    return Redistribute(x, x.layout().With(shape.Index("ep"), Replicate()));
  }
  nn::Parameter up_, down_;
};

class Moe : public nn::Module {
 public:
  Moe() {
    RegisterChild("dense", dense_);
    RegisterChild("router", router_);
    RegisterChild("experts", experts_);
  }
  Experts& experts() { return experts_; }

 protected:
  Outputs Forward(const Inputs& inputs) override {
    const DTensor x = inputs[0] + Tanh(dense_(inputs[0]));
    return x + experts_(x, Softmax(router_(x), -1));
  }

 private:
  nn::Linear dense_{kFeatures, kFeatures, kLinear}, router_{kFeatures, kExperts, kLinear};
  Experts experts_;
};

TEST(ExpertParallel, TrainsAlikeOnAllMeshes) {
  const std::vector<MeshShape> shapes = {{{"dp", 1}, {"ep", 1}}, {{"dp", 1}, {"ep", 2}},
                                         {{"dp", 2}, {"ep", 1}}, {{"dp", 2}, {"ep", 2}},
                                         {{"dp", 1}, {"ep", 4}}, {{"dp", 2}, {"ep", 3}}};
  ExpectSameOnMeshes(shapes, [](const DeviceMesh& mesh) {
    Moe model;
    if (mesh.shape().Has("ep")) {
      model.experts().Place(mesh);
      fsdp::FullyShard(model.experts(), mesh, {.shard_axes = {{"dp"}}});
      fsdp::FullyShard(model, mesh, {.shard_axes = {{"dp", "ep"}}});
    }
    model.PlaceReplicated(mesh);
    model.Initialize(/*seed=*/1);
    const auto loss = [&](int step) {
      const DTensor x = RandomRows(mesh, {kTokens, kFeatures}, /*seed=*/step);
      return MseLoss(model(x), RandomRows(mesh, {kTokens, kFeatures}, /*seed=*/100 + step));
    };
    if (mesh.shape().Has("ep") && mesh.shape().NumRanks() == 4 && mesh.shape().size(0) == 2) {
      // A rank has its part of its own experts; expert weights never travel along ep.
      const DTensor up = model.experts().own_parameters()[0].parameter.data();
      EXPECT_EQ(up.local().dim(0), mesh.coord()[0] == 0 ? 2 : 1);  // Of three.
      loss(0);
      const CommTrace trace(mesh);
      loss(0);
      EXPECT_EQ(trace.Count("ep", "all_gather", "redistribute"), 2) << trace.ToString();
      EXPECT_EQ(trace.Count("ep", "", "fsdp_gather"), 0) << trace.ToString();
      EXPECT_EQ(trace.Count("ep", "reduce_scatter"), 1) << trace.ToString();
      EXPECT_EQ(trace.Count("dp") - trace.Count("dp", "", "fsdp_gather"), 0) << trace.ToString();
    }
    return Train(model, /*steps=*/8, loss);
  });
}

}  // namespace
}  // namespace shardmesh::testing
