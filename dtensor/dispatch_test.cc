// SPDX-License-Identifier: Apache-2.0
//
// Ops that a user writes: the example of dispatch.h, and what is refused of faulty ones.
#include "shardmesh/dtensor/dispatch.h"

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

constexpr Op kScaledAdd{"scaled_add"}, kProduct{"product"}, kFaulty{"faulty"};

DTensor ScaledAdd(const DTensor& a, const DTensor& b, double s) {
  OpCall call(kScaledAdd, {&a, &b});
  call.Decide([&] { return OpRule{Rule::Parse("i j, i j -> i j; linear 0 1"), {a.shape()}}; });
  Tensor local = ops::Binary(call.context(), BinaryOp::kMul, call.local(1), s);
  ops::BinaryInto(call.context(), BinaryOp::kAdd, local, call.local(0));
  DTensor y = call.Result(local);
  call.Record({&y}, [s](std::span<const DTensor> grads, Gradients& out) {
    if (out.Needs(0)) out.Set(0, grads[0]);
    if (out.Needs(1)) out.Set(1, Mul(grads[0], s));
  });
  return y;
}

DTensor Product(const DTensor& a, const DTensor& b) {
  OpCall call(kProduct, {&a, &b});
  call.Decide([&] {
    return OpRule{Rule::Parse("i j, i j -> i j; linear 0; linear 1"), {a.shape()}};
  });
  DTensor y =
      call.Result(ops::Binary(call.context(), BinaryOp::kMul, call.local(0), call.local(1)));
  call.Record({&y}, [a = Saved(call.input(0)), b = Saved(call.input(1))](
                        std::span<const DTensor> grads, Gradients& out) {
    if (out.Needs(0)) out.Set(0, Mul(grads[0], b.Get("product")));
    if (out.Needs(1)) out.Set(1, Mul(grads[0], a.Get("product")));
  });
  return y;
}

// Returns what the kernel of a careless author might: all rows, whatever this rank's box is.
DTensor Faulty(const DTensor& x, int64_t rows) {
  OpCall call(kFaulty, {&x});
  call.Decide([&] { return OpRule{Rule::Parse("i j -> i j"), {x.shape()}}; });
  return call.Result(ops::Zeros(call.context(), {rows, x.dim(1)}, x.dtype()));
}

TEST(UserOp, IsRightInAnyLayout) {
  Random random(3);
  const GlobalValue a = RandomGlobal({5, 3}, random), b = RandomGlobal({5, 3}, random);
  const GlobalValue upstream = RandomGlobal({5, 3}, random);
  GlobalValue sum = a, scaled = upstream;
  for (size_t i = 0; i < sum.values.size(); ++i) {
    sum.values[i] += -0.5 * b.values[i];
    scaled.values[i] *= -0.5;
  }
  const MeshShape mesh_shape = {{"x", 2}, {"y", 2}};
  for (const Layout& layout : AllLayouts(mesh_shape, a.shape)) {
    SCOPED_TRACE(layout.ToString());
    Pieces value, to_a, to_b;
    OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
      DTensor x = Place(mesh, layout, a).SetRequiresGrad();
      DTensor y = Place(mesh, {Shard(1), Replicate()}, b).SetRequiresGrad();
      const DTensor result = ScaledAdd(x, y, -0.5);
      value.Put(result);
      Backward(result, Place(mesh, {Replicate(), Shard(0)}, upstream));
      to_a.Put(x.grad());
      to_b.Put(y.grad());
    });
    EXPECT_TRUE(value.AreOf(sum, 0));
    EXPECT_TRUE(to_a.AreOf(upstream, 0));
    EXPECT_TRUE(to_b.AreOf(scaled, 0));
  }
}

TEST(UserOp, SavesValuesForItsBackward) {
  Random random(4);
  const GlobalValue a = RandomGlobal({5, 3}, random), b = RandomGlobal({5, 3}, random);
  Pieces to_a;
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    DTensor x = Place(mesh, {Shard(1)}, a).SetRequiresGrad();
    const DTensor y = Place(mesh, {Partial()}, b);
    Backward(Sum(Product(x, y)));
    to_a.Put(x.grad());
    DTensor other = Place(mesh, {Shard(1)}, b);
    const DTensor late = Sum(Product(x, other));
    FillInPlace(other, 0);
    EXPECT_NE(ErrorOf([&] { Backward(late); }).find("written in place"), std::string::npos);
  });
  EXPECT_TRUE(to_a.AreOf(b, 1e-14));
}

TEST(UserOp, MustReturnThisRanksBox) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    Random random(1);
    const DTensor x = Place(mesh, {Shard(0)}, RandomGlobal({5, 3}, random));
    const int64_t own_rows = mesh.coord()[0] == 0 ? 3 : 2;
    for (int i = 0; i < 2; ++i) {  // Also when the decision is cached.
      EXPECT_EQ(Faulty(x, own_rows).shape(), Dims({5, 3}));
      const std::string message = ErrorOf([&] { Faulty(x, 5); });
      EXPECT_EQ(message,
                "faulty: result 0 is f64[5,3], but this rank's box of [5,3] [S(0)] @ [x=2] has the "
                "shape " +
                    Dims({own_rows, 3}).ToString());
    }
  });
}

TEST(NoTensor, IsAnErrorWhereverItIsUsed) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    Random random(1);
    const DTensor x = Place(mesh, {Shard(0)}, RandomGlobal({4, 3}, random)), none;
    const auto refuses = [](const char* what, absl::FunctionRef<void()> fn) {
      EXPECT_NE(ErrorOf(fn).find("no tensor"), std::string::npos) << what;
    };
    refuses("add", [&] { Add(x, none); });
    refuses("matmul", [&] { MatMul(none, x); });
    refuses("softmax", [&] { Softmax(none, 0); });
    refuses("sum", [&] { Sum(none); });
    refuses("reshape", [&] { Reshape(none, {2}); });
    refuses("transpose", [&] { Transpose(none, 0, 1); });
    refuses("concat", [&] { Concat({none, x}, 0); });
    refuses("split", [&] { Split(none, {1}, 0); });
    refuses("redistribute", [&] { Redistribute(none, {Replicate()}); });
    refuses("full tensor", [&] { FullTensor(none); });
    refuses("item", [&] { Item(none); });
    refuses("backward", [&] { Backward(none); });
    refuses("shape", [&] { none.shape(); });
    refuses("grad", [&] { none.grad(); });
    EXPECT_FALSE(none);
  });
}

TEST(Ops, SeeWhatWasWrittenIntoAnOperandThatTheyMoved) {
  // Seen here: the copy that the first call had moved was used again.
  Random random(5);
  const GlobalValue x = RandomGlobal({3, 2}, random);
  GlobalValue half = x;
  for (double& value : half.values) value *= 0.5;
  Pieces written, expected, received;
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    const DTensor columns = Place(mesh, {Shard(1)}, x);  // The last rank holds none.
    Softmax(columns, 1);
    double* const elements = columns.local().mutable_data<double>();
    for (int64_t i = 0; i < columns.local().NumElements(); ++i) elements[i] *= 0.5;
    written.Put(Softmax(columns, 1));
    expected.Put(Softmax(Place(mesh, {Shard(1)}, half), 1));

    const DTensor rows = Place(mesh, {Shard(0)}, x);
    Softmax(rows, 0);
    mesh.WorldGroup().Broadcast({rows.local()}, /*root=*/0).Wait();
    received.Put(Softmax(rows, 0));
  });
  EXPECT_TRUE(written.AreOf(expected.Value(), 0));
  EXPECT_TRUE(received.AreOf({{3, 2}, DType::kF64, std::vector<double>(6, 1.0 / 3)}, 1e-15));
}

}  // namespace
}  // namespace shardmesh::testing
