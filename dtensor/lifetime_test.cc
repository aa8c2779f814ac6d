// SPDX-License-Identifier: Apache-2.0
//
// Handles that are dropped early, kept too long, or never were tensors; graphs of any depth.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const MeshShape kOne = {{"one", 1}};
const MeshShape kTwo = {{"x", 2}};

// ---- leaves and graphs --------------------------------------------------------------------------

TEST(Lifetime, BackwardOutlivesTheHandlesOfItsLeaves) {
  const GlobalValue x = Values({5, 3}, 1), v = Values({5, 3}, 2);
  for (const MeshShape& shape : {kOne, kTwo}) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      const DTensor kept = Place(mesh, {Shard(0)}, v).SetRequiresGrad();
      DTensor loss;
      {
        const DTensor dropped = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
        loss = Sum(Mul(dropped, kept));
      }
      Backward(loss);
      EXPECT_EQ(FullTensor(kept.grad()).ToVector<double>(), x.values);
    });
  }
}

TEST(Lifetime, GraphsOfAnyShapeAreDestroyedWithoutRecursion) {
  OnMesh(kOne, [](const DeviceMesh& mesh) {
    const auto leaf = [&] { return Zeros(mesh, {}, DType::kF32, {Replicate()}).SetRequiresGrad(); };
    DTensor diamonds = leaf(), doubled = leaf(), ladder = leaf(), rung = leaf();
    for (int i = 0; i < 100000; ++i) {
      diamonds = Add(diamonds, Tanh(diamonds));
      doubled = Mul(doubled, doubled);
      rung = Add(ladder, rung);
      ladder = Sub(rung, ladder);
    }
    diamonds = DTensor();
    doubled = DTensor();
    rung = DTensor();
    ladder = DTensor();

    DTensor chain = leaf();
    for (int i = 0; i < 1000000; ++i) chain = Neg(chain);
    chain = DTensor();
  });
}

constexpr Op kKeepsItsOperand{"keeps_its_operand"};

// Captures the operand itself, graph and all, where Saved would have kept the value alone.
DTensor KeepsItsOperand(const DTensor& x) {
  OpCall call(kKeepsItsOperand, {&x});
  call.Decide([&] { return OpRule{Rule::Parse(" -> ; linear 0"), {x.shape()}}; });
  DTensor y = call.Result(ops::Clone(call.context(), call.local(0)));
  call.Record({&y}, [x](std::span<const DTensor> grads, Gradients& out) { out.Set(0, grads[0]); });
  return y;
}

TEST(Lifetime, GraphsThatBackwardFormulasCaptureAreDestroyedWithoutRecursion) {
  OnMesh(kOne, [](const DeviceMesh& mesh) {
    DTensor y = Zeros(mesh, {}, DType::kF32, {Replicate()}).SetRequiresGrad();
    for (int i = 0; i < 100000; ++i) y = KeepsItsOperand(y);
    Backward(y);
    y = DTensor();
  });
}

// ---- after the ranks have returned, and from another rank ---------------------------------------

using Use = std::pair<const char*, std::function<void(const DTensor&)>>;

// Every public function that takes a tensor as its first operand, with the name that its errors
// give.
const std::vector<Use>& Uses() {
  static const std::vector<Use> uses = {
      {"neg", [](const DTensor& x) { Neg(x); }},
      {"square", [](const DTensor& x) { Square(x); }},
      {"add", [](const DTensor& x) { Add(x, x); }},
      {"add_scalar", [](const DTensor& x) { Add(x, 1.5); }},
      {"mul_scalar", [](const DTensor& x) { Mul(x, 1.5); }},
      {"div_scalar", [](const DTensor& x) { Div(x, 1.5); }},
      {"maximum_scalar", [](const DTensor& x) { Maximum(x, 1.5); }},
      {"compare", [](const DTensor& x) { Compare(CompareOp::kLess, x, x); }},
      {"where", [](const DTensor& x) { Where(x, x, x); }},
      {"cast", [](const DTensor& x) { Cast(x, DType::kF32); }},
      {"silu_mul", [](const DTensor& x) { SiluMul(x, x); }},
      {"dropout", [](const DTensor& x) { Dropout(x, 0.5, {.seed = 1}); }},
      {"add_in_place", [](const DTensor& x) { AddInPlace(x, x); }},
      {"mul_in_place", [](const DTensor& x) { MulInPlace(x, -2.0); }},
      {"fill_in_place", [](const DTensor& x) { FillInPlace(x, 7.0); }},
      {"copy_in_place", [](const DTensor& x) { CopyInPlace(x, x); }},
      {"sum", [](const DTensor& x) { Sum(x); }},
      {"mean", [](const DTensor& x) { Mean(x); }},
      {"max", [](const DTensor& x) { Max(x); }},
      {"min", [](const DTensor& x) { Min(x, {0}); }},
      {"matmul", [](const DTensor& x) { MatMul(x, x); }},
      {"linear", [](const DTensor& x) { Linear(x, x); }},
      {"softmax", [](const DTensor& x) { Softmax(x, 0); }},
      {"log_softmax", [](const DTensor& x) { LogSoftmax(x, 0); }},
      {"rms_norm", [](const DTensor& x) { RmsNorm(x, x, 1e-6); }},
      {"layer_norm", [](const DTensor& x) { LayerNorm(x, x, {}, 1e-6); }},
      {"embedding", [](const DTensor& x) { Embedding(x, x); }},
      {"cross_entropy", [](const DTensor& x) { CrossEntropy(x, x); }},
      {"mse_loss", [](const DTensor& x) { MseLoss(x, x); }},
      {"rotary", [](const DTensor& x) { Rotary(x, {}, {}); }},
      {"attention", [](const DTensor& x) { Attention(x, x, x, true); }},
      {"reshape", [](const DTensor& x) { Reshape(x, {-1}); }},
      {"transpose", [](const DTensor& x) { Transpose(x, 0, 1); }},
      {"expand",
       [](const DTensor& x) {
         Expand(x, {3, 4, 2});
       }},
      {"slice", [](const DTensor& x) { Slice(x, 0, 0, 1); }},
      {"split", [](const DTensor& x) { Split(x, {4}, 0); }},
      {"concat",
       [](const DTensor& x) {
         Concat({x, x}, 0);
       }},
      {"Redistribute", [](const DTensor& x) { Redistribute(x, {Replicate()}); }},
      {"Redistribute", [](const DTensor& x) { Redistribute(x, Layout()); }},
      {"FullTensor", [](const DTensor& x) { FullTensor(x); }},
      {"Item", [](const DTensor& x) { Item(x); }},
      {"ToLocal", [](const DTensor& x) { ToLocal(x, {LocalGradient::kReplicated}); }},
      {"Backward", [](const DTensor& x) { Backward(x); }},
      {"Backward", [](const DTensor& x) { Backward(x, x); }},
  };
  return uses;
}

TEST(Lifetime, UseAfterTheRanksHaveReturnedNamesOpTensorAndRank) {
  const GlobalValue values = Values({4, 2}, 3);
  std::vector<DTensor> kept(2);
  EXPECT_EQ(RunRanks(2,
                     [&](Communicator& world) {
                       const DeviceMesh mesh = DeviceMesh::Create(world, kTwo);
                       kept[world.rank()] = Place(mesh, {Shard(0)}, values).SetRequiresGrad();
                     }),
            absl::OkStatus());
  for (const auto& [name, use] : Uses()) {
    EXPECT_THAT(ErrorOf([&, &use = use] { use(kept[1]); }),
                AllOf(HasSubstr(name), HasSubstr("f64[4,2] [S(0)] @ [x=2]"),
                      HasSubstr("belongs to rank 1 of a RunRanks whose ranks have returned")))
        << name;
  }
  const DeviceMesh mesh = kept[1].mesh();
  const Tensor local = kept[1].local();
  const std::vector<std::function<void()>> mesh_uses = {
      [&] { Distribute(mesh, local, {Replicate()}); },
      [&] {
        FromLocal(mesh, local, {4, 2}, {Shard(0)});
      },
      [&] {
        Full(mesh, {4, 2}, DType::kF32, 1.0, {Replicate()});
      },
      [&] { NoGrad no_grad(mesh); }, [&] { AtEndOfBackward(mesh, [](bool) {}); }};
  for (const auto& use : mesh_uses) {
    EXPECT_THAT(ErrorOf(use), HasSubstr("mesh [x=2] belongs to rank 1 of a RunRanks"));
  }
}

TEST(Lifetime, UseOnAnotherRankIsAnErrorAndWritesNothing) {
  const GlobalValue values = Values({4, 2}, 4);
  std::vector<DTensor> all(2);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const int me = mesh.coord()[0];
    all[me] = Place(mesh, {Shard(0)}, values);
    mesh.WorldGroup().Barrier();
    for (const auto& [name, use] : Uses()) {
      EXPECT_THAT(ErrorOf([&, &use = use] { use(all[1 - me]); }),
                  AllOf(HasSubstr(name), HasSubstr("f64[4,2] [S(0)] @ [x=2]"),
                        HasSubstr("used on a thread that is not this rank's")))
          << name;
    }
    mesh.WorldGroup().Barrier();
    EXPECT_EQ(FullTensor(all[me]).ToVector<double>(), values.values);
  });
}

// ---- no tensor at all ---------------------------------------------------------------------------

TEST(Lifetime, EveryOpNamesItselfWhenItGetsNoTensor) {
  OnMesh(kOne, [](const DeviceMesh&) {
    for (const auto& [name, use] : Uses()) {
      EXPECT_THAT(ErrorOf([&use = use] { use(DTensor()); }),
                  AllOf(HasSubstr(name), HasSubstr("no tensor")));
    }
    EXPECT_THAT(ErrorOf([] { DTensor().shape(); }), HasSubstr("DTensor::layout"));
  });
}

TEST(Lifetime, MakingFromNothingIsRefused) {
  OnMesh(kTwo, [](const DeviceMesh& mesh) {
    EXPECT_THAT(ErrorOf([&] { Distribute(mesh, Tensor(), {Replicate()}); }),
                HasSubstr("Distribute: there is no tensor"));
    EXPECT_THAT(ErrorOf([&] { FromLocal(mesh, Tensor(), {4}, {Shard(0)}); }),
                HasSubstr("rank 0 passed no tensor instead of [2], rank 1 passed no tensor"));
    // On one rank alone: all ranks say so.
    const Tensor local =
        mesh.coord()[0] == 0 ? ops::Zeros(mesh.context(), {2}, DType::kF32) : Tensor();
    EXPECT_THAT(ErrorOf([&] { FromLocal(mesh, local, {4}, {Shard(0)}); }),
                HasSubstr("rank 1 passed no tensor instead of [2]"));
    const auto make = [&](const std::function<void(const Box&, Tensor&)>& fill) {
      return ErrorOf([&] { FromBoxes(mesh, {5, 2}, DType::kF32, {Shard(0)}, fill); });
    };
    EXPECT_THAT(make(nullptr), HasSubstr("FromBoxes: `fill` is empty"));
    const auto replace = [&](const Tensor& other) {
      return make([&](const Box&, Tensor& local) { local = other; });
    };
    EXPECT_THAT(replace({}), HasSubstr("`fill` replaced the tensor it was to fill"));
    EXPECT_THAT(replace(ops::Zeros(mesh.context(), {7}, DType::kF32)), HasSubstr("replaced"));
    // Another view of the same memory, of the same shape.
    EXPECT_THAT(ErrorOf([&] {
                  FromBoxes(mesh, {6, 3}, DType::kF32, {Shard(0)},
                            [](const Box&, Tensor& local) { local = local.Transpose(0, 1); });
                }),
                HasSubstr("replaced"));
    DTensor x = Zeros(mesh, {3}, DType::kF32, {Replicate()}).SetRequiresGrad();
    EXPECT_THAT(ErrorOf([&] { x.RegisterGradHook(nullptr); }), HasSubstr("is empty"));
    EXPECT_THAT(ErrorOf([&] { WithBackwardCallback(x, nullptr); }), HasSubstr("is empty"));
    EXPECT_THAT(ErrorOf([&] { AtEndOfBackward(mesh, nullptr); }), HasSubstr("is empty"));
    EXPECT_THAT(ErrorOf([&] { Redistribute(x, Layout()); }), HasSubstr("an empty Layout"));
    EXPECT_THAT(ErrorOf([] { Zeros(DeviceMesh(), {3}, DType::kF32, {}); }),
                HasSubstr("no mesh was used"));
  });
}

// ---- ops of users -------------------------------------------------------------------------------

constexpr Op kOuter{"outer"}, kHasty{"hasty"};

TEST(Lifetime, ACallSurvivesThatAnOpInsideItEmptiesTheDecisionCache) {
  const GlobalValue x = Values({5, 3}, 5);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    Runtime::Of(mesh).max_decisions = 2;
    const DTensor a = Place(mesh, {Shard(0)}, x);
    OpCall call(kOuter, {&a});
    call.Decide([&] { return OpRule{Rule::Parse("i j -> i j"), {a.shape()}}; });
    for (int64_t rows = 1; rows < 9; ++rows) Neg(Zeros(mesh, {rows, 2}, DType::kF32, {Shard(0)}));
    const DTensor y = call.Result(ops::Clone(call.context(), call.local(0)));
    EXPECT_EQ(y.layout(), a.layout());
    EXPECT_LE(Runtime::Of(mesh).num_decisions(), 2u);
  });
}

TEST(Lifetime, ACallWithoutDecideIsAnErrorThatNamesTheOp) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor a = Zeros(mesh, {2}, DType::kF32, {Replicate()});
    OpCall call(kHasty, {&a});
    EXPECT_THAT(ErrorOf([&] { call.Result(a.local()); }), HasSubstr("hasty"));
    EXPECT_THAT(ErrorOf([&] { call.local(0); }), HasSubstr("before Decide"));
    EXPECT_THAT(ErrorOf([&] { call.input(0); }), HasSubstr("before Decide"));
    EXPECT_THAT(ErrorOf([&] { call.InputBox(0); }), HasSubstr("before Decide"));
    EXPECT_THAT(ErrorOf([&] { call.output_layout(); }), HasSubstr("before Decide"));
    call.Decide([&] { return OpRule{Rule::Parse("i -> i"), {a.shape()}}; });
    EXPECT_THAT(ErrorOf([&] { call.local(7); }), HasSubstr("hasty: there is no operand 7"));
    EXPECT_THAT(ErrorOf([&] { call.local(-1); }), HasSubstr("hasty: there is no operand -1"));
    EXPECT_THAT(ErrorOf([&] { call.Result(a.local(), 1); }),
                HasSubstr("hasty: there is no result 1"));
  });
}

}  // namespace
}  // namespace shardmesh::testing
