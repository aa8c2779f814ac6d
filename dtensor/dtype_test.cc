// SPDX-License-Identifier: Apache-2.0
//
// Every op in every floating dtype: results and gradients have the dtype that they have in f64,
// read as the one at hand, and their values as well as it can hold them.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/dtensor/testing/op_cases.h"

namespace shardmesh::testing {
namespace {

GlobalValue As(GlobalValue value, DType dtype) {
  if (value.dtype == DType::kF64) value.dtype = dtype;
  return value;
}

// Result and gradients of one op, with its operands split along their first dims.
std::vector<GlobalValue> RunIn(DType dtype, const OpCase& op_case) {
  std::vector<Pieces> pieces(op_case.operands.size() + 1);
  std::vector<char> has_gradient(op_case.operands.size(), false);
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    SCOPED_TRACE(absl::StrCat(op_case.ToString(), " in ", std::string(Name(dtype))));
    std::vector<DTensor> operands;
    for (const GlobalValue& value : op_case.operands) {
      const Placement placement = value.shape.empty() ? Replicate() : Shard(0);
      operands.push_back(Place(mesh, {placement}, As(value, dtype)));
      if (value.dtype == DType::kF64) operands.back().SetRequiresGrad();
    }
    const DTensor y = op_case.apply(operands);
    pieces[0].Put(y);
    if (!y.RequiresGrad()) return;
    Random random(5);
    GlobalValue upstream = RandomGlobal(y.shape(), random);
    upstream.dtype = y.dtype();
    Backward(y, Place(mesh, {Replicate()}, upstream));
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].grad()) continue;
      if (mesh.coord()[0] == 0) has_gradient[i] = true;
      EXPECT_EQ(operands[i].grad().dtype(), operands[i].dtype()) << "gradient " << i;
      pieces[i + 1].Put(operands[i].grad());
    }
  });
  std::vector<GlobalValue> values = {pieces[0].Value()};
  for (size_t i = 0; i < has_gradient.size(); ++i) {
    if (has_gradient[i]) values.push_back(pieces[i + 1].Value());
  }
  return values;
}

using Tolerances = std::map<DType, double>;

// Values are multiples of 1/256 below 4, which f32 holds and bf16 rounds.
void CheckAll(const std::vector<OpCase>& cases,
              const Tolerances& tolerances = {
                  {DType::kF32, 1e-5}, {DType::kBF16, 0.1}, {DType::kF16, 0.01}}) {
  for (const OpCase& op_case : cases) {
    const std::vector<GlobalValue> exact = RunIn(DType::kF64, op_case);
    for (const auto& [dtype, tolerance] : tolerances) {
      SCOPED_TRACE(absl::StrCat(op_case.ToString(), " in ", std::string(Name(dtype))));
      const std::vector<GlobalValue> rounded = RunIn(dtype, op_case);
      ASSERT_EQ(rounded.size(), exact.size());
      for (size_t i = 0; i < exact.size(); ++i) {
        const bool is_loss = i == 0 && op_case.name.starts_with("cross_entropy");  // In f32.
        if (!is_loss && !op_case.name.starts_with("cast")) {
          EXPECT_EQ(rounded[i].dtype, As(exact[i], dtype).dtype) << i;
        }
        EXPECT_TRUE(AreClose(rounded[i].values, exact[i].values, tolerance)) << i;
      }
    }
  }
}

TEST(DTypes, UnaryRows) { CheckAll(ElementwiseCases(1)); }
TEST(DTypes, BinaryRows) { CheckAll(ElementwiseCases(2)); }
TEST(DTypes, TernaryRows) { CheckAll(ElementwiseCases(3)); }
TEST(DTypes, BinaryOps) { CheckAll(BinaryCases()); }
TEST(DTypes, Selections) { CheckAll(SelectionCases()); }
TEST(DTypes, Reductions) { CheckAll(ReductionCases()); }
TEST(DTypes, Products) { CheckAll(ProductCases()); }
TEST(DTypes, SoftmaxAndNorms) { CheckAll(RowCases()); }
TEST(DTypes, Lookups) { CheckAll(LookupCases()); }
TEST(DTypes, Losses) { CheckAll(LossCases()); }
TEST(DTypes, Attention) { CheckAll(AttentionCases()); }
TEST(DTypes, ShapeOps) { CheckAll(ShapeCases()); }
TEST(DTypes, Views) { CheckAll(ViewCases()); }
TEST(DTypes, Rearrangements) { CheckAll(RearrangementCases()); }
TEST(DTypes, Contractions) { CheckAll(ContractionCases()); }
TEST(DTypes, LinearAlgebra) { CheckAll(LinalgCases(), {{DType::kF32, 1e-5}}); }
TEST(DTypes, MatrixAndCrossProducts) { CheckAll(LinalgProductCases()); }
TEST(DTypes, Windows) { CheckAll(WindowCases()); }
TEST(DTypes, ChannelNorms) { CheckAll(ChannelNormCases()); }

TEST(DTypes, AreNotMixed) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    Random random(1);
    const GlobalValue value = RandomGlobal({4, 4}, random);
    const DTensor wide = Place(mesh, {Shard(0)}, value);
    const DTensor narrow = Place(mesh, {Shard(0)}, As(value, DType::kF32));
    const DTensor vector = Place(mesh, {Replicate()}, RandomGlobal({4}, random));
    const DTensor ids = Place(mesh, {Shard(0)}, RandomIntegers({4}, random, 0, 4));
    const auto refuses = [](const char* what, absl::FunctionRef<void()> fn) {
      for (int i = 0; i < 2; ++i) {  // Also when the layouts are known.
        const std::string message = ErrorOf(fn);
        EXPECT_NE(message.find("f32"), std::string::npos) << what << ": " << message;
        EXPECT_NE(message.find("f64"), std::string::npos) << what << ": " << message;
      }
    };
    // A decision for operands of one dtype must not serve for two.
    Add(wide, wide);
    MatMul(wide, wide);
    refuses("add", [&] { Add(wide, narrow); });
    refuses("maximum", [&] { Maximum(narrow, wide); });
    refuses("compare", [&] { Compare(CompareOp::kLess, wide, narrow); });
    refuses("where", [&] { Where(Compare(CompareOp::kLess, wide, 0.0), wide, narrow); });
    refuses("silu_mul", [&] { SiluMul(wide, narrow); });
    refuses("matmul", [&] { MatMul(wide, narrow); });
    refuses("linear", [&] { Linear(narrow, wide); });
    refuses("rms_norm", [&] { RmsNorm(narrow, vector, 1e-5); });
    refuses("layer_norm", [&] { LayerNorm(narrow, vector, {}, 1e-5); });
    refuses("concat", [&] { Concat({wide, narrow}, 1); });
    refuses("mse_loss", [&] { MseLoss(wide, narrow); });
    refuses("add in place", [&] { AddInPlace(wide, narrow); });
    EXPECT_EQ(CrossEntropy(narrow, ids).dtype(), DType::kF32);
  });
}

}  // namespace
}  // namespace shardmesh::testing
