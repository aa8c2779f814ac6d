// SPDX-License-Identifier: Apache-2.0
//
// What a gradient may be, and who may write it: hooks, SetGrad, formulas of users, in-place ops on
// what a backward reads.
#include "shardmesh/dtensor/gradients.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

std::vector<double> Times(const GlobalValue& value, double factor) {
  std::vector<double> result = value.values;
  for (double& v : result) v *= factor;
  return result;
}

std::vector<double> FullGrad(const DTensor& leaf) {
  return FullTensor(leaf.grad()).ToVector<double>();
}

TEST(GradHook, ThatWritesInPlaceChangesNoOtherGradient) {
  const GlobalValue x = Values({5, 3}, 61), y = Values({5, 3}, 62), g = Values({5, 3}, 63);
  for (const MeshShape& shape : {kOne, kTwo}) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      const auto zero = [](const DTensor& grad) {
        MulInPlace(grad, 0.0);
        return grad;
      };
      DTensor a = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
      DTensor b = Place(mesh, {Shard(0)}, y).SetRequiresGrad();
      DTensor inner = Add(a, b);
      a.RegisterGradHook(zero);
      const DTensor given = Place(mesh, {Shard(0)}, g);
      Backward(Add(inner, b), given);
      EXPECT_EQ(FullGrad(a), Times(g, 0.0));
      EXPECT_EQ(FullGrad(b), Times(g, 2.0));
      EXPECT_EQ(FullTensor(given).ToVector<double>(), g.values);

      // The same on the result of an op, and on the root itself.
      b.ZeroGrad();
      DTensor middle = Neg(b), root = Add(middle, b);
      middle.RegisterGradHook(zero);
      Backward(root, given);
      EXPECT_EQ(FullGrad(b), g.values);
      b.ZeroGrad();
      root = Neg(b);
      root.RegisterGradHook(zero);
      Backward(root, given);
      EXPECT_EQ(FullGrad(b), Times(g, 0.0));
      EXPECT_EQ(FullTensor(given).ToVector<double>(), g.values);
    });
  }
}

TEST(GradHook, MayWriteAGradientThatWasExpanded) {
  const GlobalValue x = Values({5, 3}, 64);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    leaf.RegisterGradHook([](const DTensor& grad) {
      MulInPlace(grad, -3.0);
      return grad;
    });
    Backward(Sum(leaf));
    EXPECT_EQ(FullGrad(leaf), std::vector<double>(15, -3.0));
  });
}

TEST(GradHook, MayKeepWhatItReturnsAndWriteItLater) {
  const GlobalValue x = Values({5, 3}, 65), g = Values({5, 3}, 66);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    DTensor a = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    // Backward meets early, other, late, in this order.
    DTensor late = Neg(a), other = Neg(a), early = Add(late, 1.0), kept;
    early.RegisterGradHook([&](const DTensor& grad) { return kept = grad; });
    other.RegisterGradHook([&](const DTensor& grad) {
      MulInPlace(kept, 0.0);
      return Mul(grad, 0.0);
    });
    Backward(Add(early, other), Place(mesh, {Shard(0)}, g));
    EXPECT_EQ(FullGrad(a), Times(g, -1.0));
    EXPECT_EQ(FullTensor(kept).ToVector<double>(), Times(g, 0.0));
  });
}

TEST(SetGrad, CopiesAGradientThatHasOtherHandles) {
  const GlobalValue x = Values({5, 3}, 67), g = Values({5, 3}, 68);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    DTensor a = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    DTensor b = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    Backward(a, Place(mesh, {Shard(0)}, g));
    b.SetGrad(a.grad());
    Backward(b, Place(mesh, {Shard(0)}, g));
    EXPECT_EQ(FullGrad(a), g.values);
    EXPECT_EQ(FullGrad(b), Times(g, 2.0));
    // Another handle of the same memory.
    const DTensor mine = Place(mesh, {Shard(0)}, g);
    a.SetGrad(mine.Detach());
    Backward(a, Place(mesh, {Shard(0)}, g));
    EXPECT_EQ(FullTensor(mine).ToVector<double>(), g.values);
  });
}

constexpr Op kWithBackward{"with_backward"};

using Formula = std::function<void(const DTensor& grad, Gradients& out)>;

// A copy of x whose backward is `formula`.
DTensor WithBackward(const DTensor& x, Formula formula) {
  OpCall call(kWithBackward, {&x});
  call.Decide([&] { return OpRule{Rule::Parse("i j -> i j"), {x.shape()}}; });
  DTensor y = call.Result(ops::Clone(call.context(), call.local(0)));
  call.Record(
      {&y}, [formula](std::span<const DTensor> grads, Gradients& out) { formula(grads[0], out); });
  return y;
}

TEST(Backward, RefusesAGradientThatDoesNotFitItsOperand) {
  const GlobalValue x = Values({5, 3}, 71);
  struct Case {
    Formula formula;
    const char* message;
  };
  const std::vector<Case> cases = {
      {[](const DTensor& grad, Gradients& out) { out.Set(0, Sum(grad, {0}, true)); },
       "the gradient of operand 0 is f64[1,3]"},
      {[](const DTensor& grad, Gradients& out) { out.Set(0, Sum(grad)); },
       "the gradient of operand 0 is f64[]"},
      {[](const DTensor& grad, Gradients& out) { out.Set(0, Transpose(grad, 0, 1)); },
       "the gradient of operand 0 is f64[3,5]"},
      {[](const DTensor& grad, Gradients& out) { out.Set(0, Cast(grad, DType::kF32)); },
       "the gradient of operand 0 is f32[5,3]"},
      {[](const DTensor& grad, Gradients& out) { out.Set(7, grad); }, "there is no operand 7"},
      {[](const DTensor& grad, Gradients& out) { out.Set(-1, grad); }, "there is no operand -1"},
      {[](const DTensor&, Gradients& out) { out.Needs(2); }, "there is no operand 2"},
      {[](const DTensor& grad, Gradients& out) {
         MulInPlace(grad, 2.0);
         out.Set(0, grad);
       },
       "wrote the gradient f64[5,3] [S(0)] @ [x=2] of its result 0 in place"},
  };
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    for (const Case& c : cases) {
      for (const bool of_leaf : {true, false}) {
        const DTensor g =
            Place(mesh, {Shard(0)}, x);  // The formula that writes it writes this one.
        DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
        // Used twice, so that a gradient that broadcasts would be summed into the other one.
        const DTensor operand = of_leaf ? leaf : Neg(leaf);
        const DTensor root = Add(WithBackward(operand, c.formula), operand);
        EXPECT_THAT(ErrorOf([&] { Backward(root, g); }),
                    AllOf(HasSubstr("backward of with_backward"), HasSubstr(c.message)));
        EXPECT_FALSE(leaf.grad());
      }
    }
    // A gradient that nobody wants may be anything.
    DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    Backward(WithBackward(leaf, [](const DTensor& grad, Gradients& out) { out.Set(0, grad); }),
             Place(mesh, {Shard(0)}, x));
    EXPECT_EQ(FullGrad(leaf), x.values);
  });
}

TEST(Backward, RefusesRotaryTablesThatWereWrittenSince) {
  const GlobalValue x = Values({1, 2, 3, 4}, 72);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    DTensor leaf = Place(mesh, {Shard(1)}, x).SetRequiresGrad();
    Tensor cos = ops::Full(mesh.context(), {3, 2}, DType::kF64, 0.6);
    const Tensor sin = ops::Full(mesh.context(), {3, 2}, DType::kF64, 0.8);
    const DTensor loss = Sum(Rotary(leaf, cos, sin));
    ops::BinaryInto(mesh.context(), BinaryOp::kMul, cos, 100.0);
    EXPECT_THAT(ErrorOf([&] { Backward(loss); }),
                AllOf(HasSubstr("rotary"), HasSubstr("was written in place after forward")));
  });
}

// A silently wrong gradient: the formula read what the collective had left.
TEST(Backward, RefusesASavedValueThatACollectiveWrote) {
  struct Row {
    const char* name;
    void (*write)(Communicator& group, const Tensor& target);
  };
  const std::vector<Row> rows = {
      {"all-reduce",
       [](Communicator& group, const Tensor& target) {
         group.AllReduce({{target, target}}, ReduceOp::kSum).Wait();
       }},
      {"all-gather",
       [](Communicator& group, const Tensor& target) {
         const std::vector<Tensor> parts = {target.Narrow(0, 0, 1), target.Narrow(0, 1, 2)};
         group.AllGather({{ops::Clone(group.context(), parts[group.rank()]), parts}}).Wait();
       }},
      {"reduce-scatter",
       [](Communicator& group, const Tensor& target) {
         const Tensor source = ops::Clone(group.context(), target);
         group.ReduceScatter({{{source, source}, target}}, ReduceOp::kSum).Wait();
       }},
      {"all-to-all",
       [](Communicator& group, const Tensor& target) {
         const Tensor row = ops::Clone(group.context(), target.Narrow(0, 2, 1));
         group.AllToAll({{{row, row}, {target.Narrow(0, 0, 1), target.Narrow(0, 1, 1)}}}).Wait();
       }},
      {"broadcast",  // Writes nothing on its root; all ranks refuse alike.
       [](Communicator& group, const Tensor& target) { group.Broadcast({target}, 0).Wait(); }},
  };
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    for (const Row& row : rows) {
      const DTensor leaf = Place(mesh, {Replicate()}, Values({3, 3}, 73)).SetRequiresGrad();
      const DTensor other = Place(mesh, {Replicate()}, Values({3, 3}, 74));
      const DTensor loss = Sum(Mul(leaf, other));
      row.write(mesh.WorldGroup(), other.local());
      EXPECT_THAT(ErrorOf([&] { Backward(loss); }),
                  AllOf(HasSubstr("backward of mul"), HasSubstr("written in place after forward"),
                        HasSubstr("f64[3,3]")))
          << row.name;
      EXPECT_FALSE(leaf.grad()) << row.name;
    }
  });
}

TEST(Backward, RefusesALeafThatWasWrittenThroughAPointerAlikeOnAllRanks) {
  const GlobalValue x = Values({2}, 75);
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {  // The last rank holds nothing.
    const DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    const DTensor loss = Sum(Square(leaf));
    double* const elements = leaf.local().mutable_data<double>();
    for (int64_t i = 0; i < leaf.local().NumElements(); ++i) elements[i] += 1.0;
    EXPECT_THAT(ErrorOf([&] { Backward(loss); }),
                AllOf(HasSubstr("backward of square"), HasSubstr("written in place")));
    EXPECT_FALSE(leaf.grad());
  });
}

TEST(Backward, DoesNotMindThatALeafWasReadThroughAPointer) {
  const GlobalValue x = Values({2}, 76);
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    const DTensor loss = Sum(Square(leaf));
    const double* const elements = leaf.local().data<double>();
    EXPECT_EQ(elements, leaf.local().raw_data());
    Backward(loss);
    EXPECT_EQ(FullGrad(leaf), Times(x, 2));
  });
}

}  // namespace
}  // namespace shardmesh::testing
