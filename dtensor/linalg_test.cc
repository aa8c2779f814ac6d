// SPDX-License-Identifier: Apache-2.0
//
// What dtensor/ops/linalg.h promises beside values on any mesh (rule_validator_test) and PyTorch's
// (opinfo_test): faults that one rank sees, singular matrices, uneven and empty batches, what is
// read, what is sent.
#include "shardmesh/dtensor/ops/linalg.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/reshard_policy.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Symmetric, and each diagonal element is larger than the others of its row together.
GlobalValue Dominant(const Dims& shape, uint64_t seed = 1) {
  GlobalValue value = Values(shape, seed);
  const int64_t n = shape.back();
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    const int64_t row = i / n % n, column = i % n;
    if (row == column) value.values[i] += static_cast<double>(2 * n + 3);
    if (row > column) value.values[i] = value.values[i + (column - row) * n + row - column];
  }
  return value;
}

// `x` with matrix `index` of the batch zero.
GlobalValue WithZero(GlobalValue x, int64_t index) {
  const int64_t size = x.shape.back() * x.shape.back();
  for (int64_t i = 0; i < size; ++i) x.values[index * size + i] = 0;
  return x;
}

GlobalValue As(GlobalValue value, DType dtype) {
  value.dtype = dtype;
  return value;
}

DTensor Matrix(const DeviceMesh& mesh, const Dims& shape, std::vector<double> values) {
  return Place(mesh, {Replicate()}, GlobalValue{shape, DType::kF64, std::move(values)});
}

std::vector<double> ValuesOf(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

double LargestDifference(const DTensor& a, const DTensor& b) {
  const std::vector<double> left = ValuesOf(a), right = ValuesOf(b);
  EXPECT_EQ(a.shape(), b.shape());
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i)
    largest = std::isnan(left[i]) ? kNan : std::max(largest, std::abs(left[i] - right[i]));
  return largest;
}

// ---- values -------------------------------------------------------------------------------------

// 2, 2 and 1 matrices; 1, 1 and none.
TEST(Linalg, GivesBackTheMatrixFromUnevenAndEmptyBatches) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    for (const int64_t batch : {5, 2}) {
      const DTensor x = Place(mesh, {Shard(0)}, Dominant({batch, 4, 4}));
      const DTensor identity = MatrixPower(x, 0);
      const auto t = [](const DTensor& y) { return Transpose(y, -2, -1); };
      EXPECT_LT(LargestDifference(MatMul(x, Inv(x)), identity), 1e-14);
      EXPECT_LT(LargestDifference(MatMul(x, MatrixPower(x, -1)), identity), 1e-14);
      EXPECT_LT(LargestDifference(MatMul(MatrixPower(x, 3), MatrixPower(x, -3)), identity), 1e-12);
      const DTensor lower = Cholesky(x), upper = Cholesky(x, /*upper=*/true);
      EXPECT_LT(LargestDifference(MatMul(lower, t(lower)), x), 1e-13);
      EXPECT_LT(LargestDifference(MatMul(t(upper), upper), x), 1e-13);
      const auto [q, r] = Qr(x);
      EXPECT_LT(LargestDifference(MatMul(q, r), x), 1e-13);
      EXPECT_LT(LargestDifference(MatMul(t(q), q), identity), 1e-14);
      const auto [values, vectors] = Eigh(x);
      EXPECT_LT(LargestDifference(MatMul(vectors, Mul(Unsqueeze(values, -1), t(vectors))), x),
                1e-13);
      const auto [sign, log_abs] = SlogDet(x);
      EXPECT_LT(LargestDifference(Mul(sign, Exp(log_abs)), Det(x)), 1e-9);
      for (const DTensor& y : {lower, q, r, values, vectors, sign, log_abs, Det(x)})
        EXPECT_EQ(y.layout().placement(0), Shard(0));
    }
  });
}

TEST(Linalg, CompletesTheColumnsOfATallMatrix) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({3, 5, 2}, 1)).SetRequiresGrad();
    const auto [q, r] = Qr(x, /*complete=*/true);
    EXPECT_EQ(q.shape(), (Dims{3, 5, 5}));
    EXPECT_EQ(r.shape(), (Dims{3, 5, 2}));
    EXPECT_LT(LargestDifference(MatMul(q, r), x), 1e-13);
    EXPECT_LT(LargestDifference(MatMul(Transpose(q, -2, -1), q), MatrixPower(q, 0)), 1e-14);
    const DTensor loss = Sum(r);
    EXPECT_NE(ErrorOf([&] { Backward(loss); }).find("backward of qr"), std::string::npos);
  });
}

TEST(Linalg, ReadsOneTriangleOnly) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const GlobalValue whole = Dominant({3, 3});
    GlobalValue lower = whole, upper = whole, strict = whole;
    for (const int i : {1, 2, 5}) lower.values[i] = kNan;
    for (const int i : {3, 6, 7}) upper.values[i] = kNan;
    for (const int i : {0, 3, 4, 6, 7, 8}) strict.values[i] = kNan;
    const DTensor x = Place(mesh, {Shard(0)}, whole), l = Place(mesh, {Shard(1)}, lower);
    const DTensor u = Place(mesh, {Shard(0)}, upper), s = Place(mesh, {Shard(0)}, strict);
    const DTensor b = Place(mesh, {Shard(1)}, Values({3, 5}, 2));
    EXPECT_EQ(LargestDifference(Cholesky(l), Cholesky(x)), 0);
    EXPECT_EQ(LargestDifference(Cholesky(u, true), Cholesky(x, true)), 0);
    EXPECT_EQ(LargestDifference(Eigh(l).first, Eigh(x).first), 0);
    EXPECT_EQ(LargestDifference(Eigh(u, true).second, Eigh(x, true).second), 0);
    EXPECT_EQ(LargestDifference(SolveTriangular(l, b, false), SolveTriangular(x, b, false)), 0);
    EXPECT_EQ(LargestDifference(SolveTriangular(s, b, true, true, true),
                                SolveTriangular(x, b, true, true, true)),
              0);
  });
}

TEST(Linalg, IsNanWhereAMatrixIs) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Matrix(mesh, {2, 2}, {1, 2, kNan, 4});
    for (const DTensor& y : {Det(x), SlogDet(x).first, Eigh(x).first, Eigh(x).second, Qr(x).second})
      EXPECT_TRUE(std::isnan(ValuesOf(y)[0])) << y.ToString();
    EXPECT_NE(ErrorOf([&] { Cholesky(x); }).find("not positive definite"), std::string::npos);
  });
}

// ---- singular matrices --------------------------------------------------------------------------

std::vector<double> DetGradient(const DeviceMesh& mesh, int64_t n, std::vector<double> values,
                                DType dtype = DType::kF64) {
  const GlobalValue value{{n, n}, dtype, std::move(values)};
  const DTensor x = Place(mesh, {Replicate()}, value).SetRequiresGrad();
  const DTensor y = Det(x);
  Backward(y, Place(mesh, {Replicate()}, GlobalValue{{}, dtype, {1}}));
  return ValuesOf(x.grad());
}

TEST(Det, HasTheCofactorsAsGradientAlsoOfSingularMatrices) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const auto check = [&](int64_t n, const std::vector<double>& x,
                           const std::vector<double>& expected) {
      EXPECT_TRUE(AreClose(DetGradient(mesh, n, x), expected, 1e-13));
      EXPECT_TRUE(AreClose(DetGradient(mesh, n, x, DType::kF32), expected, 1e-6));
    };
    check(1, {0}, {1});
    check(1, {-3}, {1});
    check(2, {1, 2, 3, 4}, {4, -3, -2, 1});
    check(2, {1, 2, 2, 4}, {4, -2, -2, 1});
    check(2, {0, 1, 0, 0}, {0, 0, -1, 0});
    check(2, {0, 0, 0, 5}, {5, 0, 0, 0});
    check(3, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {-3, 6, -3, 6, -12, 6, -3, 6, -3});
    check(3, {1, 2, 3, 4, 5, 6, 5, 7, 9}, {3, -6, 3, 3, -6, 3, -3, 6, -3});
    for (const double value : DetGradient(mesh, 3, {1, 2, 3, 2, 4, 6, -1, -2, -3}))
      EXPECT_LT(std::abs(value), 1e-13);
    for (const double value : DetGradient(mesh, 3, std::vector<double>(9, 0)))
      EXPECT_LT(std::abs(value), 1e-13);
    // Not singular, but for the rounding that a decomposition of another kind would add.
    EXPECT_NEAR(DetGradient(mesh, 2, {1, 0, 0, 0x1p-70})[0] / 0x1p-70, 1, 1e-13);
    EXPECT_NEAR(DetGradient(mesh, 2, {1, 0, 0, 0x1p-70})[3], 1, 1e-13);
  });
}

// The determinant alone is beyond what a double holds; its derivatives are not.
TEST(Det, HasGradientsThatDoNotOverflow) {
  OnMesh({{"x", 1}}, [](const DeviceMesh& mesh) {
    EXPECT_TRUE(
        AreClose(DetGradient(mesh, 2, {0x1p600, 0, 0, 0x1p600}), {0x1p600, 0, 0, 0x1p600}, 1e-12));
    EXPECT_TRUE(AreClose(DetGradient(mesh, 2, {0x1p-600, 0, 0, 0x1p-600}),
                         {0x1p-600, 0, 0, 0x1p-600}, 1e-12));
  });
}

// All but one column of the identity, moved by one: rank n - 1, and every diagonal element is 0.
TEST(Det, HasTheGradientOfAShift) {
  OnMesh({{"x", 1}}, [](const DeviceMesh& mesh) {
    for (const int64_t n : {3, 20, 64}) {
      std::vector<double> shift(n * n, 0), expected(n * n, 0);
      for (int64_t i = 0; i + 1 < n; ++i) shift[i * n + i + 1] = 1;
      expected[(n - 1) * n] = n % 2 == 0 ? -1 : 1;
      EXPECT_TRUE(AreClose(DetGradient(mesh, n, shift), expected, 1e-12)) << n;
    }
  });
}

TEST(Det, OfASingularMatrixIsZero) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, WithZero(Dominant({3, 2, 2}), 2));
    const std::vector<double> det = ValuesOf(Det(x)), log_abs = ValuesOf(SlogDet(x).second);
    EXPECT_GT(det[1], 1);
    EXPECT_EQ(det[2], 0);
    EXPECT_EQ(ValuesOf(SlogDet(x).first)[2], 0);
    EXPECT_EQ(log_abs[2], -std::numeric_limits<double>::infinity());
  });
}

TEST(Eigh, HasGradientsOfEqualValues) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Matrix(mesh, {2, 2}, {3, 0, 0, 3}).SetRequiresGrad();
    Backward(Sum(Eigh(x).first));
    EXPECT_EQ(ValuesOf(x.grad()), (std::vector<double>{1, 0, 0, 1}));
  });
}

// ---- faults -------------------------------------------------------------------------------------

struct Fault {
  const char* name;
  const char* says;
  std::function<void(const DTensor& x, const DTensor& b)> fn;
};

std::vector<Fault> Faults() {
  return {
      {"cholesky", "is not positive definite", [](auto& x, auto&) { Cholesky(x); }},
      {"cholesky", "is not positive definite", [](auto& x, auto&) { Cholesky(x, true); }},
      {"inv", "is singular", [](auto& x, auto&) { Inv(x); }},
      {"matrix_power", "is singular", [](auto& x, auto&) { MatrixPower(x, -2); }},
      {"solve", "is singular", [](auto& x, auto& b) { Solve(x, b); }},
      {"backward of slogdet", "is singular",
       [](auto& x, auto&) {
         const DTensor leaf = x.Detach().SetRequiresGrad();
         Backward(Sum(SlogDet(leaf).second));
       }},
  };
}

// Calls each on all ranks: every one throws the same, at once, and can go on.
void CheckFaults(const MeshShape& mesh_shape, const std::vector<Placement>& placements,
                 const std::vector<Placement>& placements_of_b, const GlobalValue& x,
                 const GlobalValue& b, const std::string& which) {
  for (const Fault& fault : Faults()) {
    std::vector<std::string> messages(static_cast<size_t>(mesh_shape.NumRanks()));
    OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
      const DTensor operand = Place(mesh, Layout::Make(mesh.shape(), placements, x.shape), x);
      const DTensor right = Place(mesh, Layout::Make(mesh.shape(), placements_of_b, b.shape), b);
      std::string& message = messages[mesh.shape().RankOf(mesh.coord())];
      message = ErrorOf([&] { fault.fn(operand, right); });
      EXPECT_EQ(ErrorOf([&] { fault.fn(operand, right); }), message);
      FullTensor(Sum(operand));  // Nobody waits in another collective.
    });
    for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
    for (const std::string& part : {absl::StrCat(fault.name, ": ", which), std::string(fault.says)})
      EXPECT_NE(messages[0].find(part), std::string::npos) << messages[0] << "\nlacks " << part;
  }
}

TEST(LinalgFaults, NameTheFirstMatrixOfTheWholeBatchOnAllRanks) {
  const GlobalValue x = WithZero(WithZero(Dominant({5, 3, 3}), 4), 3);
  const GlobalValue b = Values({5, 3, 7}, 2);
  for (const Placement& placement : {Shard(0), Replicate(), Shard(1), Partial()})
    CheckFaults({{"x", 3}}, {placement}, {Shard(0)}, x, b, "matrix [3] of f64[5,3,3]");
  CheckFaults({{"x", 2}}, {Replicate()}, {Shard(2)}, x, b, "matrix [3] of f64[5,3,3]");
  CheckFaults({{"x", 2}, {"y", 2}}, {Shard(0), Shard(0)}, {Replicate(), Shard(2)}, x, b,
              "matrix [3] of f64[5,3,3]");
}

TEST(LinalgFaults, NameAMatrixOfABatchOfTwoDims) {
  const GlobalValue x = WithZero(Dominant({3, 2, 2, 2}), 5), b = Values({3, 2, 2, 1}, 2);
  CheckFaults({{"x", 2}, {"y", 2}}, {Shard(0), Shard(1)}, {Shard(1), Shard(0)}, x, b,
              "matrix [2, 1] of f64[3,2,2,2]");
  CheckFaults({{"x", 3}}, {Shard(1)}, {Replicate()}, x, b, "matrix [2, 1] of f64[3,2,2,2]");
}

TEST(LinalgFaults, NameNoIndexWithoutABatch) {
  CheckFaults({{"x", 3}}, {Shard(0)}, {Shard(1)}, WithZero(Dominant({2, 2}), 0), Values({2, 5}, 2),
              "f64[2,2]");
}

// The one matrix on the left serves a batch of which one rank has nothing.
TEST(LinalgFaults, AreSeenByRanksWithoutABatch) {
  const GlobalValue x = WithZero(Dominant({1, 2, 2}), 0);
  for (const Placement& placement : {Shard(0), Shard(1), Shard(2), Partial()})
    CheckFaults({{"x", 3}}, {Replicate()}, {placement}, x, Values({2, 2, 1}, 2),
                "matrix [0] of f64[1,2,2]");
}

TEST(LinalgFaults, NameOpAndDTypeAndWhatToDo) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kI64}) {
      const DTensor x = Place(mesh, {Shard(0)}, As(Dominant({2, 2, 2}), DType::kF64));
      const DTensor small = Cast(x, dtype);
      const auto refuses = [&](const char* op, const std::function<void()>& fn) {
        for (int i = 0; i < 2; ++i) {
          const std::string message = ErrorOf(fn);
          for (const std::string& part : {absl::StrCat(op, ": expected f32 or f64"),
                                          std::string(Name(dtype)), std::string("Cast it to f32")})
            EXPECT_NE(message.find(part), std::string::npos) << message;
        }
      };
      refuses("cholesky", [&] { Cholesky(small); });
      refuses("det", [&] { Det(small); });
      refuses("slogdet", [&] { SlogDet(small); });
      refuses("inv", [&] { Inv(small); });
      refuses("solve", [&] { Solve(small, small); });
      refuses("solve_triangular", [&] { SolveTriangular(small, small, true); });
      refuses("qr", [&] { Qr(small); });
      refuses("eigh", [&] { Eigh(small); });
      refuses("matrix_power", [&] { MatrixPower(small, -1); });
      EXPECT_NE(ErrorOf([&] { Solve(x, small); }).find("two dtypes"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { SolveTriangular(small, x, true); }).find("solve_triangular"),
                std::string::npos);
    }
  });
}

TEST(LinalgFaults, NameShapesThatDoNotFit) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Dominant({2, 3, 3}));
    const DTensor oblong = Place(mesh, {Shard(0)}, Values({3, 2}, 1));
    const DTensor vector = Place(mesh, {Shard(0)}, Values({2}, 1));
    const auto refuses = [&](const char* part, const std::function<void()>& fn) {
      const std::string message = ErrorOf(fn);
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    refuses("cholesky: expected square", [&] { Cholesky(oblong); });
    refuses("det: expected at least 2 dims", [&] { Det(vector); });
    refuses("qr", [&] { Qr(vector); });
    refuses("inv", [&] { Inv(DTensor()); });
    refuses("3 columns, but f64[2,1]", [&] { Solve(x, vector); });
    refuses("solve_triangular: expected at least 2 dims",
            [&] { SolveTriangular(x, vector, true); });
    refuses("eigh: expected square", [&] { Eigh(oblong); });
    refuses("cross: expected extent 3 in dim 1", [&] { Cross(oblong, oblong); });
    refuses("cross: expected numbers of as many dims", [&] { Cross(x, oblong); });
    refuses("matrix_power: expected a floating dtype",
            [&] { MatrixPower(Cast(x, DType::kI64), 2); });
    EXPECT_EQ(Cross(oblong, oblong, 0).shape(), oblong.shape());
  });
}

// ---- what is sent -------------------------------------------------------------------------------

TEST(Linalg, SendsNothingButTheAgreementWhereTheBatchIsSharded) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const NoReshard no_reshard(mesh);
    const DTensor x = Place(mesh, {Shard(0)}, Dominant({5, 3, 3})).SetRequiresGrad();
    const DTensor b = Place(mesh, {Shard(0)}, Values({5, 3, 2}, 1)).SetRequiresGrad();
    const auto count = [&](const std::function<void()>& fn) {
      CommTrace trace(mesh);
      fn();
      for (const CommTrace::Event& event : trace.events()) {
        EXPECT_EQ(event.kind, "all_reduce");
        EXPECT_EQ(event.bytes, 8);
      }
      return trace.events().size();
    };
    EXPECT_EQ(count([&] { Det(x); }), 0u);
    EXPECT_EQ(count([&] { Qr(x); }), 0u);
    EXPECT_EQ(count([&] { Eigh(x); }), 0u);
    EXPECT_EQ(count([&] { SlogDet(x); }), 0u);
    EXPECT_EQ(count([&] { SolveTriangular(x, b, true); }), 0u);
    EXPECT_EQ(count([&] { Cholesky(x); }), 1u);
    EXPECT_EQ(count([&] { Inv(x); }), 1u);
    EXPECT_EQ(count([&] { Solve(x, b); }), 1u);
    const DTensor same = Place(mesh, {Replicate()}, Dominant({3, 3}));
    EXPECT_EQ(count([&] { Cholesky(same); }), 0u);
    const DTensor columns = Place(mesh, {Shard(1)}, Values({3, 5}, 1));
    EXPECT_EQ(count([&] { EXPECT_EQ(Solve(same, columns).layout().placement(0), Shard(1)); }), 0u);
  });
}

TEST(Linalg, PassesAPartialWhereItIsLinear) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const NoReshard no_reshard(mesh);
    const DTensor a = Place(mesh, {Replicate()}, Dominant({3, 3}));
    const DTensor b = Place(mesh, {Partial()}, Values({3, 3}, 1));
    for (const DTensor& y : {Solve(a, b), SolveTriangular(a, b, true), Cross(a, b), Cross(b, a),
                             SolveTriangular(a, b, false, /*left=*/false)})
      EXPECT_EQ(y.layout().placement(0), Partial()) << y.ToString();
  });
}

}  // namespace
}  // namespace shardmesh::testing
