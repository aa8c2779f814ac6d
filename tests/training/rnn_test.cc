// SPDX-License-Identifier: Apache-2.0
//
// A recurrent network: one FullyShard unit that is called once for each position.
#include <gtest/gtest.h>

#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/tests/training/mesh_parity.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::testing {
namespace {

constexpr int64_t kInputs = 5, kHidden = 7, kOutputs = 3, kRows = 6, kLength = 9;
constexpr nn::LinearOptions kLinear = {
    .bias = true, .dtype = DType::kF64, .weight_init = {nn::Init::Kind::kNormal, 0, 0.4}};

// h, x -> tanh(W h + U x + b).
class Cell : public nn::Module {
 public:
  Cell() {
    RegisterChild("hidden", hidden_);
    RegisterChild("input", input_);
  }

 protected:
  Outputs Forward(const Inputs& h_x) override { return Tanh(hidden_(h_x[0]) + input_(h_x[1])); }

 private:
  nn::Linear hidden_{kHidden, kHidden, kLinear};
  nn::Linear input_{kInputs, kHidden, kLinear};
};

// x [rows, length, inputs] -> [rows, outputs] from the last hidden state.
class Rnn : public nn::Module {
 public:
  Rnn() {
    RegisterChild("cell", cell_);
    RegisterChild("head", head_);
  }
  Cell& cell() { return cell_; }

 protected:
  Outputs Forward(const Inputs& inputs) override {
    const DTensor& x = inputs[0];
    DTensor h = Full(x.mesh(), {x.dim(0), kHidden}, DType::kF64, 0.5,
                     std::vector<Placement>(x.mesh().shape().num_axes(), Replicate()));
    for (int64_t t = 0; t < x.dim(1); ++t) {
      h = cell_(h, Reshape(Slice(x, /*dim=*/1, t, 1), {x.dim(0), kInputs}));
    }
    return head_(h);
  }

 private:
  Cell cell_;
  nn::Linear head_{kHidden, kOutputs, kLinear};
};

TEST(Rnn, TrainsAlikeOnAllMeshes) {
  ExpectSameOnAllMeshes([](const DeviceMesh& mesh) {
    Rnn model;
    if (mesh.shape().Has("tp")) {
      tp::Parallelize(model, mesh, "tp",
                      {{"cell.input", tp::Colwise()}, {"cell.hidden", tp::Colwise()}});
    }
    ShardUnit(model.cell(), mesh);
    ShardUnit(model, mesh);
    model.PlaceReplicated(mesh);
    model.Initialize(/*seed=*/1);
    return Train(model, /*steps=*/6, [&](int step) {
      // Sequences of another length in each step, so that the unit is called another number of
      // times.
      const DTensor x = RandomRows(mesh, {kRows, kLength - step, kInputs}, /*seed=*/step);
      return MseLoss(model(x), RandomRows(mesh, {kRows, kOutputs}, /*seed=*/100 + step));
    });
  });
}

}  // namespace
}  // namespace shardmesh::testing
