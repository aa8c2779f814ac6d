// SPDX-License-Identifier: Apache-2.0
//
// Summands of bf16 and f16: kept in f32 until they are added up, so that a sum over ranks is
// rounded once, as on one rank; or kept small where that is asked for.
#include "shardmesh/dtensor/partial_precision.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

const MeshShape kTwo = {{"x", 2}};
const std::vector<MeshShape> kMeshes = {
    {{"x", 1}}, {{"x", 2}}, {{"x", 3}}, {{"x", 5}}, {{"x", 2}, {"y", 2}}};
constexpr double kInf = std::numeric_limits<double>::infinity();

// The first dim spread over all axes.
std::vector<Placement> Rows(const MeshShape& mesh) {
  return std::vector<Placement>(mesh.num_axes(), Shard(0));
}
std::vector<Placement> Columns(const MeshShape& mesh) {
  return std::vector<Placement>(mesh.num_axes(), Shard(1));
}
std::vector<Placement> Everywhere(const MeshShape& mesh) {
  return std::vector<Placement>(mesh.num_axes(), Replicate());
}

DTensor Make(const DeviceMesh& mesh, const GlobalValue& value,
             const std::vector<Placement>& placements) {
  return Distribute(mesh, WholeTensor(mesh.context(), value), placements);
}

std::vector<double> Whole(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

// Each column adds up to 2, its parts to much more: bf16 has 8 bits, f16 overflows at 65,504.
GlobalValue Cancelling(DType dtype) {
  const double large = dtype == DType::kF16 ? 32000 : 256;
  std::vector<double> values;
  for (const double sign : {1.0, 1.0, 1.0, 1.0, 0.0, -1.0, -1.0, -1.0, -1.0, 0.0})
    for (const double scale : {large, -large / 2, 1.0})
      values.push_back(sign == 0 ? 1.0 : sign * scale);
  return {{10, 3}, dtype, values};
}

TEST(PartialPrecision, SumsOverRanksAreThoseOfOneRank) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const GlobalValue x = Cancelling(dtype), ones = {{1, 10}, dtype, std::vector<double>(10, 1.0)};
    for (const MeshShape& shape : kMeshes) {
      OnMesh(shape, [&](const DeviceMesh& mesh) {
        const DTensor rows = Make(mesh, x, Rows(shape));
        const std::vector<double> expected = {2, 2, 2};
        EXPECT_EQ(Whole(Sum(rows, {0})), expected) << shape.ToString();
        EXPECT_EQ(Whole(MatMul(Make(mesh, ones, Columns(shape)), rows)), expected);
        EXPECT_EQ(Whole(Linear(Make(mesh, ones, Columns(shape)), Transpose(rows, 0, 1))), expected);
        EXPECT_EQ(Sum(rows, {0}).dtype(), dtype);
        EXPECT_EQ(FullTensor(Sum(rows, {0})).dtype(), dtype);
      });
    }
  }
}

TEST(PartialPrecision, SummandsStayWideThroughWhatPassesThem) {
  struct Row {
    const char* name;
    std::function<DTensor(const DTensor& s)> op;
    std::vector<double> expected;  // Of s = [2, 2, 2].
  };
  const std::vector<Row> rows = {
      {"neg", [](const DTensor& s) { return Neg(s); }, {-2, -2, -2}},
      {"mul", [](const DTensor& s) { return Mul(s, 3.0); }, {6, 6, 6}},
      {"div", [](const DTensor& s) { return Div(s, 4.0); }, {0.5, 0.5, 0.5}},
      {"add", [](const DTensor& s) { return Add(s, s); }, {4, 4, 4}},
      {"sub", [](const DTensor& s) { return Sub(s, Neg(s)); }, {4, 4, 4}},
      {"mul by a tensor",
       [](const DTensor& s) {
         return Mul(s, Full(s.mesh(), {3}, s.dtype(), -1.5, Everywhere(s.mesh().shape())));
       },
       {-3, -3, -3}},
      {"reshape",
       [](const DTensor& s) {
         return Reshape(s, {3, 1});
       },
       {2, 2, 2}},
      {"transpose",
       [](const DTensor& s) {
         return Transpose(Reshape(s, {3, 1}), 0, 1);
       },
       {2, 2, 2}},
      {"expand", [](const DTensor& s) { return Expand(Slice(s, 0, 1, 1), {2}); }, {2, 2}},
      {"concat",
       [](const DTensor& s) {
         return Concat({s, Neg(s)}, 0);
       },
       {2, 2, 2, -2, -2, -2}},
      {"sum", [](const DTensor& s) { return Sum(s); }, {6}},
      {"matmul",
       [](const DTensor& s) {
         return MatMul(Reshape(s, {1, 3}),
                       Full(s.mesh(), {3, 2}, s.dtype(), 0.5, Everywhere(s.mesh().shape())));
       },
       {3, 3}},
      {"dropout of nothing",
       [](const DTensor& s) { return Dropout(s, 0.0, {.seed = 3}); },
       {2, 2, 2}},
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const MeshShape& shape : kMeshes) {
      OnMesh(shape, [&](const DeviceMesh& mesh) {
        const DTensor s = Sum(Make(mesh, Cancelling(dtype), Rows(shape)), {0});
        for (const Row& row : rows) {
          const DTensor y = row.op(s);
          EXPECT_EQ(y.dtype(), dtype) << row.name;
          EXPECT_EQ(y.local().dtype(), shape.NumRanks() > 1 ? DType::kF32 : dtype) << row.name;
          EXPECT_EQ(Whole(y), row.expected) << row.name << " " << shape.ToString();
        }
        const DTensor wide = Cast(s, DType::kF32);
        EXPECT_EQ(wide.dtype(), DType::kF32);
        EXPECT_EQ(Whole(wide), (std::vector<double>{2, 2, 2}));
      });
    }
  }
}

TEST(PartialPrecision, MovesRoundOnce) {
  const GlobalValue x = Cancelling(DType::kF16);
  const MeshShape shape = {{"x", 2}, {"y", 3}};
  OnMesh(shape, [&](const DeviceMesh& mesh) {
    const DTensor s = Sum(Make(mesh, x, Rows(shape)), {0});
    ASSERT_EQ(s.layout().placements()[0], Partial());
    ASSERT_EQ(s.layout().placements()[1], Partial());
    for (const Layout& layout : AllLayouts(shape, s.shape())) {
      const DTensor moved = Redistribute(s, layout);
      EXPECT_EQ(moved.dtype(), DType::kF16);
      EXPECT_EQ(moved.local().dtype(), layout.HasPartial() ? DType::kF32 : DType::kF16) << layout;
      EXPECT_EQ(Whole(moved), (std::vector<double>{2, 2, 2})) << layout;
      // There and back, bit for bit.
      const DTensor back = Redistribute(Redistribute(moved, {Replicate(), Partial()}), layout);
      EXPECT_EQ(Whole(back), (std::vector<double>{2, 2, 2})) << layout;
    }
  });
}

TEST(PartialPrecision, GradientsOfReplicatedWeightsAreRoundedOnce) {
  const GlobalValue x = Cancelling(DType::kF16);
  for (const MeshShape& shape : kMeshes) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      DTensor w = Full(mesh, {2, 3}, DType::kF16, 0.5, Everywhere(shape)).SetRequiresGrad();
      DTensor bias = Full(mesh, {2}, DType::kF16, 0.0, Everywhere(shape)).SetRequiresGrad();
      DTensor scale = Full(mesh, {3}, DType::kF16, 1.0, Everywhere(shape)).SetRequiresGrad();
      const DTensor rows = Make(mesh, x, Rows(shape));
      Backward(Linear(Mul(rows, scale), w, bias),
               Full(mesh, {10, 2}, DType::kF16, 1.0, Rows(shape)));
      EXPECT_EQ(Whole(w.grad()), (std::vector<double>{2, 2, 2, 2, 2, 2})) << shape.ToString();
      EXPECT_EQ(Whole(bias.grad()), (std::vector<double>{10, 10}));
      EXPECT_EQ(Whole(scale.grad()), (std::vector<double>{2, 2, 2}));
      EXPECT_EQ(w.grad().local().dtype(), DType::kF16);
    });
  }
}

TEST(PartialPrecision, InPlaceOpsTakeSummandsOfEitherKind) {
  const GlobalValue x = Cancelling(DType::kBF16);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor s = Sum(Make(mesh, x, Rows(kTwo)), {0});
    const DTensor one = Full(mesh, {3}, DType::kBF16, 1.0, {Replicate()});
    AddInPlace(s, one);
    AddInPlace(s, Redistribute(one, {Partial()}));
    MulInPlace(s, -0.5);
    EXPECT_EQ(Whole(s), (std::vector<double>{-2, -2, -2}));
    AddInPlace(one, s);
    EXPECT_EQ(Whole(one), (std::vector<double>{-1, -1, -1}));
  });
}

TEST(PartialPrecision, AScopeKeepsSummandsSmallForwardAndBackward) {
  const GlobalValue x = Cancelling(DType::kBF16);
  for (const PartialPrecision precision :
       {PartialPrecision::kAccumulator, PartialPrecision::kTensor}) {
    const bool small = precision == PartialPrecision::kTensor;
    OnMesh(kTwo, [&](const DeviceMesh& mesh) {
      DTensor w = Full(mesh, {2, 3}, DType::kBF16, 0.5, {Replicate()}).SetRequiresGrad();
      const DTensor rows = Make(mesh, x, Rows(kTwo));
      DTensor sum, y;
      {
        const PartialPrecisionScope scope(mesh, precision);
        sum = Sum(rows, {0});
        y = Linear(rows, w);
      }
      const int64_t element = small ? 2 : 4;
      EXPECT_EQ(SizeOf(sum.local().dtype()), element);
      {
        CommTrace trace(mesh);
        Redistribute(sum, {Replicate()});
        // An all-reduce over 2 ranks of 3 elements: 1 of 2, then 2 of 1 in one direction.
        EXPECT_EQ(trace.Bytes("x", "all_reduce", "redistribute"), 3 * element);
      }
      // 256 + 256 + .. + 1 is not a bf16 number.
      EXPECT_EQ(Whole(sum) == (std::vector<double>{2, 2, 2}), !small);
      CommTrace trace(mesh);
      Backward(y, Full(mesh, {10, 2}, DType::kBF16, 1.0, {Shard(0)}));
      EXPECT_EQ(trace.Bytes("x", "all_reduce"), 6 * element);
    });
  }
}

TEST(PartialPrecision, ScopesNestAndEnd) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const auto element = [&] {
      return SizeOf(Sum(Zeros(mesh, {4}, DType::kF16, {Shard(0)})).local().dtype());
    };
    EXPECT_EQ(element(), 4);
    {
      const PartialPrecisionScope small(mesh, PartialPrecision::kTensor);
      EXPECT_EQ(element(), 2);
      {
        const PartialPrecisionScope wide(mesh, PartialPrecision::kAccumulator);
        EXPECT_EQ(element(), 4);
      }
      EXPECT_EQ(element(), 2);
      // Wide summands that meet small ones: both are small here, wide outside.
      const DTensor s = Sum(Zeros(mesh, {4}, DType::kF16, {Shard(0)}));
      EXPECT_EQ(Add(s, s).local().dtype(), DType::kF16);
    }
    EXPECT_EQ(element(), 4);
  });
}

// The gradient of a value that several scopes use was once held as the scope of the first use said,
// so that one scope's f32 was rounded because of another's bf16.
TEST(PartialPrecision, AGradientOfSeveralScopesIsSmallOnlyIfAllAre) {
  constexpr PartialPrecision kWide = PartialPrecision::kAccumulator,
                             kSmall = PartialPrecision::kTensor;
  struct Row {
    PartialPrecision first, second;
    int64_t element_bytes;
  };
  for (const Row& row : {Row{kWide, kWide, 4}, Row{kSmall, kWide, 4}, Row{kWide, kSmall, 4},
                         Row{kSmall, kSmall, 2}}) {
    OnMesh(kTwo, [&](const DeviceMesh& mesh) {
      DTensor x = Full(mesh, {5, 4}, DType::kBF16, 0.5, {Replicate()}).SetRequiresGrad();
      const auto use = [&](PartialPrecision precision, double weight) {
        const PartialPrecisionScope scope(mesh, precision);
        return Linear(x, Full(mesh, {6, 4}, DType::kBF16, weight, {Shard(0)}));
      };
      const DTensor first = use(row.first, 0.25), second = use(row.second, -1.5);
      CommTrace trace(mesh);
      Backward(Add(first, second), Full(mesh, {5, 6}, DType::kBF16, 1.0, {Shard(1)}));
      EXPECT_EQ(trace.Bytes("x", "all_reduce"), 5 * 4 * row.element_bytes);
      EXPECT_EQ(Whole(x.grad()), std::vector<double>(20, 6 * (0.25 - 1.5)));
    });
  }
}

TEST(PartialPrecision, AScopeOnOneRankAloneIsAnErrorThatShowsBothDTypes) {
  const absl::Status status = RunRanks(2, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, kTwo);
    const PartialPrecisionScope scope(
        mesh, world.rank() == 0 ? PartialPrecision::kTensor : PartialPrecision::kAccumulator);
    Redistribute(Sum(Make(mesh, Cancelling(DType::kBF16), Rows(kTwo)), {0}), {Replicate()});
  });
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::AllOf(::testing::HasSubstr("mismatch"), ::testing::HasSubstr("bf16[3]"),
                       ::testing::HasSubstr("f32[3]"), ::testing::HasSubstr("redistribute")));
}

// ---- numbers that are not finite ----------------------------------------------------------------

TEST(PartialTimesANumber, ThatIsNotFiniteReducesFirst) {
  const GlobalValue x = {{5, 2}, DType::kF32, {3, 0, -1, 0, 2, 0, -2, 0, 1, 0}};  // Sums 3 and 0.
  for (const MeshShape& shape : kMeshes) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      DTensor leaf = Make(mesh, x, Rows(shape)).SetRequiresGrad();
      const DTensor s = Slice(Sum(leaf, {0}), 0, 0, 1);
      EXPECT_EQ(Whole(Mul(s, kInf)), std::vector<double>{kInf}) << shape.ToString();
      EXPECT_EQ(Whole(Mul(s, -kInf)), std::vector<double>{-kInf});
      EXPECT_EQ(Whole(Div(s, 0.0)), std::vector<double>{kInf});
      EXPECT_EQ(Whole(Div(s, -0.0)), std::vector<double>{-kInf});
      EXPECT_EQ(Whole(Div(s, kInf)), std::vector<double>{0.0});
      EXPECT_EQ(Whole(Mul(s, 2.0)), std::vector<double>{6});  // The same op, another decision.
      Backward(Sum(Mul(s, kInf)));
      EXPECT_EQ(Whole(leaf.grad())[0], kInf);
    });
  }
}

TEST(PartialTimesANumber, InPlaceRefusesOneThatIsNotFinite) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor s = Sum(Full(mesh, {3}, DType::kF32, -2.0, {Shard(0)}));
    EXPECT_THAT(ErrorOf([&] { MulInPlace(s, kInf); }),
                ::testing::AllOf(::testing::HasSubstr("mul_in_place"), ::testing::HasSubstr("inf"),
                                 ::testing::HasSubstr("redistribute it first")));
    EXPECT_EQ(Item(s), -6);
  });
}

TEST(Masks, KeepAnInfiniteGradientFromWhatItDoesNotReach) {
  const GlobalValue a = {{5}, DType::kF32, {3, -1, 2, -2, 1}},
                    b = {{5}, DType::kF32, {1, 1, 1, 1, 1}};
  const std::vector<double> no = {0, 0, 0, 0, 0};
  for (const MeshShape& shape : kMeshes) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      const auto gradients = [&](const std::function<DTensor(const DTensor&, const DTensor&)>& op) {
        DTensor x = Make(mesh, a, Rows(shape)).SetRequiresGrad();
        DTensor y = Make(mesh, b, Rows(shape)).SetRequiresGrad();
        const DTensor result = op(x, y);
        Backward(result, Full(mesh, result.shape(), DType::kF32, kInf, Everywhere(shape)));
        return std::vector<std::vector<double>>{Whole(x.grad()), y.grad() ? Whole(y.grad()) : no};
      };
      using Grads = std::vector<std::vector<double>>;
      EXPECT_EQ(gradients([](const DTensor& x, const DTensor& y) { return Maximum(x, y); }),
                (Grads{{kInf, 0, kInf, 0, kInf}, {0, kInf, 0, kInf, kInf}}));
      EXPECT_EQ(gradients([](const DTensor& x, const DTensor& y) { return Minimum(x, y); }),
                (Grads{{0, kInf, 0, kInf, kInf}, {kInf, 0, kInf, 0, kInf}}));
      EXPECT_EQ(gradients([](const DTensor& x, const DTensor&) { return Maximum(x, 0.0); }),
                (Grads{{kInf, 0, kInf, 0, kInf}, no}));
      EXPECT_EQ(gradients([](const DTensor& x, const DTensor&) { return Minimum(x, 0.0); }),
                (Grads{{0, kInf, 0, kInf, 0}, no}));
      EXPECT_EQ(gradients([](const DTensor& x, const DTensor&) { return Relu(x); }),
                (Grads{{kInf, 0, kInf, 0, kInf}, no}));
      EXPECT_EQ(gradients([](const DTensor& x, const DTensor&) { return Max(x); }),
                (Grads{{kInf, 0, 0, 0, 0}, no}));
      EXPECT_EQ(gradients([](const DTensor& x, const DTensor&) { return Min(x, {0}, true); }),
                (Grads{{0, 0, 0, kInf, 0}, no}));
      EXPECT_EQ(gradients([](const DTensor& x, const DTensor& y) {
                  return Where(Compare(CompareOp::kGreater, x, 0.0), x, y);
                }),
                (Grads{{kInf, 0, kInf, 0, kInf}, {0, kInf, 0, kInf, 0}}));
    });
  }
}

}  // namespace
}  // namespace shardmesh::testing
