// SPDX-License-Identifier: Apache-2.0
//
// Operators mean what the functions that they stand for say: numbers on either side, and compound
// assignment, which writes.
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/placement/placement.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<double> Whole(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

std::vector<double> Each(const std::vector<double>& values,
                         const std::function<double(double)>& fn) {
  std::vector<double> result;
  for (const double value : values) result.push_back(fn(value));
  return result;
}

TEST(Operators, TakeNumbersOnTheLeftInEveryLayout) {
  GlobalValue x = Values({5, 3}, 1);
  for (double& value : x.values) value = value == 0 ? 0.5 : value;
  const std::vector<ReduceOp> partials = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                          ReduceOp::kProduct};
  for (const MeshShape& shape :
       {MeshShape{{"x", 1}}, MeshShape{{"x", 3}}, MeshShape{{"x", 2}, {"y", 2}}}) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      for (const Layout& layout : AllLayouts(shape, x.shape, partials)) {
        const DTensor a = Place(mesh, layout, x);
        EXPECT_EQ(Whole(1.5 + a), Each(x.values, [](double v) { return 1.5 + v; })) << layout;
        EXPECT_EQ(Whole(1.5 - a), Each(x.values, [](double v) { return 1.5 - v; })) << layout;
        EXPECT_EQ(Whole(1.5 * a), Each(x.values, [](double v) { return 1.5 * v; })) << layout;
        EXPECT_EQ(Whole(-0.1 / a), Each(x.values, [](double v) { return -0.1 / v; })) << layout;
      }
    });
  }
}

TEST(Operators, WithNumbersOnTheLeftAreDifferentiable) {
  const GlobalValue x = {{3}, DType::kF64, {-2, 0.5, 4}};
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    DTensor a = Place(mesh, {Shard(0)}, x);
    a.SetRequiresGrad(true);
    Backward(Sum((1 - a) + 3 * a + 2 / a));
    EXPECT_EQ(Whole(a.grad()), Each(x.values, [](double v) { return 2 - 2 / v / v; }));
  });
}

TEST(Operators, OfIntegersStayIntegersAndRefuseAQuotient) {
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor a = Place(mesh, {Shard(0)}, GlobalValue{{3}, DType::kI32, {-2, 5, 7}});
    const DTensor b = 7 - 2 * a;
    EXPECT_EQ(b.dtype(), DType::kI32);
    EXPECT_EQ(FullTensor(b).ToVector<int32_t>(), (std::vector<int32_t>{11, -3, -7}));
    EXPECT_THAT(ErrorOf([&] { 1.0 / a; }), AllOf(HasSubstr("number_over"), HasSubstr("i32[3]")));
  });
}

TEST(Operators, OfCompoundAssignmentWriteTheTensorThatAllHandlesSee) {
  const GlobalValue x = Values({5, 3}, 2), y = Values({3}, 3);
  const MeshShape shape = {{"x", 2}, {"y", 2}};
  OnMesh(shape, [&](const DeviceMesh& mesh) {
    for (const Layout& layout : AllLayouts(shape, x.shape, {})) {
      const DTensor a = Place(mesh, layout, x);
      const DTensor other = a;
      a += Place(mesh, {Shard(0), Partial()}, y);
      std::vector<double> expected = x.values;
      for (int i = 0; i < 15; ++i) expected[i] += y.values[i % 3];
      EXPECT_EQ(Whole(other), expected) << layout;
      a -= a;
      EXPECT_EQ(Whole(other), std::vector<double>(15, 0)) << layout;
    }
    DTensor a = Place(mesh, {Partial(), Shard(1)}, x);
    (a += a) *= -0.5;
    EXPECT_EQ(a.layout().placement(0), Partial());
    EXPECT_EQ(Whole(a), Each(x.values, [](double v) { return -v; }));
  });
}

TEST(Operators, OfCompoundAssignmentRefuseToLoseAGradient) {
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    DTensor leaf = Place(mesh, {Shard(0)}, Values({5}, 4));
    const DTensor total = Place(mesh, {Shard(0)}, Values({5}, 5));
    leaf.SetRequiresGrad(true);
    EXPECT_THAT(ErrorOf([&] { total += leaf; }),
                AllOf(HasSubstr("add_in_place"), HasSubstr("returns a new tensor")));
    EXPECT_THAT(
        ErrorOf([&] { leaf *= 2; }),
        AllOf(HasSubstr("mul_in_place"), HasSubstr("returns a new tensor"), HasSubstr("NoGrad")));
    std::vector<double> expected = Values({5}, 5).values;
    EXPECT_EQ(Whole(total), expected);
    const NoGrad no_grad(mesh);
    total += leaf;
    for (int i = 0; i < 5; ++i) expected[i] += Values({5}, 4).values[i];
    EXPECT_EQ(Whole(total), expected);
  });
}

}  // namespace
}  // namespace shardmesh::testing
