// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/random.h"

#include <cmath>
#include <numbers>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

// Of a smaller part of its range the distribution function has too few digits to be inverted.
constexpr double kLeastShare = 1e-9;
constexpr char kTruncatedNormal[] = "truncated_normal", kMultinomial[] = "multinomial";

void CheckNumbers(const char* op, DType dtype, const char* first_name, double first,
                  const char* second_name, double second, bool is_right) {
  if (!IsFloating(dtype)) {
    ThrowInvalid(op, ": needs a floating-point dtype, got ", std::string(Name(dtype)));
  }
  if (is_right && std::isfinite(first) && std::isfinite(second)) return;
  ThrowInvalid(op, ": ", first_name, " is ", first, " and ", second_name, " ", second);
}

// Where each element is a function of x's line along the last dim: that of x but there.
std::vector<Placement> PlacementsOfLines(const DTensor& x) {
  std::vector<Placement> placements(x.layout().placements().begin(), x.layout().placements().end());
  for (Placement& placement : placements) {
    if (placement.IsPartial() || placement == Shard(x.num_dims() - 1)) placement = Replicate();
  }
  return placements;
}

std::vector<Placement> Replicated(const DeviceMesh& mesh) {
  return std::vector<Placement>(static_cast<size_t>(mesh.shape().num_axes()));
}

// The distribution function of the normal numbers.
double Phi(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

}  // namespace

DTensor Uniform(const DeviceMesh& mesh, const Dims& shape, DType dtype,
                const std::vector<Placement>& placements, RandomKey key, double low, double high) {
  CheckNumbers("uniform", dtype, "low", low, "high", high, low <= high);
  return FromBoxes(mesh, shape, dtype, placements, [&](const Box& box, Tensor& local) {
    ops::RandomUniform(mesh.context(), key, {shape, box.begin}, low, high, local);
  });
}

DTensor Normal(const DeviceMesh& mesh, const Dims& shape, DType dtype,
               const std::vector<Placement>& placements, RandomKey key, double mean,
               double stddev) {
  CheckNumbers("normal", dtype, "mean", mean, "stddev", stddev, stddev >= 0);
  return FromBoxes(mesh, shape, dtype, placements, [&](const Box& box, Tensor& local) {
    ops::RandomNormal(mesh.context(), key, {shape, box.begin}, mean, stddev, local);
  });
}

DTensor TruncatedNormal(const DeviceMesh& mesh, const Dims& shape, DType dtype,
                        const std::vector<Placement>& placements, RandomKey key, double mean,
                        double stddev, double low, double high) {
  CheckNumbers(kTruncatedNormal, dtype, "mean", mean, "stddev", stddev, stddev > 0);
  CheckNumbers(kTruncatedNormal, dtype, "low", low, "high", high, low < high);
  const double begin = Phi((low - mean) / stddev), end = Phi((high - mean) / stddev);
  if (end - begin < kLeastShare) {
    ThrowInvalid(kTruncatedNormal, ": [", low, ", ", high, "] holds ", end - begin,
                 " of the normal numbers of mean ", mean, " and stddev ", stddev,
                 ", expected at least ", kLeastShare);
  }
  const DTensor share = Uniform(mesh, shape, DType::kF64, placements, key, begin, end);
  const DTensor standard = Mul(Erfinv(Sub(Mul(share, 2.0), 1.0)), std::numbers::sqrt2);
  const DTensor x = Clamp(Add(Mul(standard, stddev), mean), low, high);
  return dtype == DType::kF64 ? x : Cast(x, dtype);
}

DTensor RandomIntegers(const DeviceMesh& mesh, const Dims& shape,
                       const std::vector<Placement>& placements, RandomKey key, int64_t low,
                       int64_t high) {
  const double count = static_cast<double>(high) - static_cast<double>(low);
  if (!(count >= 1 && count < 0x1p53)) {
    ThrowInvalid("random_integers: expected a range of 1 to 2^53 numbers, got [", low, ", ", high,
                 ")");
  }
  const DTensor steps = Floor(Uniform(mesh, shape, DType::kF64, placements, key, 0, count));
  // The largest product may be rounded up to the end. Whole numbers of i64 are exact.
  const DTensor offset = Cast(Minimum(steps, count - 1), DType::kI64);
  const DTensor first =
      Distribute(mesh, Tensor::FromValues<int64_t>(mesh.context(), {}, {low}), Replicated(mesh));
  return Add(offset, first);
}

DTensor RandomPermutation(const DeviceMesh& mesh, int64_t n,
                          const std::vector<Placement>& placements, RandomKey key) {
  if (n < 0) ThrowInvalid("random_permutation: expected at least 0 numbers, got ", n);
  return Redistribute(ArgSort(Uniform(mesh, {n}, DType::kF64, Replicated(mesh), key), 0),
                      placements);
}

DTensor UniformLike(const DTensor& x, RandomKey key, double low, double high) {
  internal::CheckUsable("uniform_like", x);
  const Layout layout = x.layout().PartialAsReplicate();
  Tensor local = Tensor::Empty(x.mesh().context(), layout.LocalShape(x.mesh().coord()), x.dtype());
  CheckNumbers("uniform_like", x.dtype(), "low", low, "high", high, low <= high);
  ops::RandomUniform(x.mesh().context(), key, {x.shape(), layout.LocalBox(x.mesh().coord()).begin},
                     low, high, local);
  return DTensor(x.mesh(), layout, std::move(local));
}

DTensor NormalLike(const DTensor& x, RandomKey key, double mean, double stddev) {
  internal::CheckUsable("normal_like", x);
  const Layout layout = x.layout().PartialAsReplicate();
  Tensor local = Tensor::Empty(x.mesh().context(), layout.LocalShape(x.mesh().coord()), x.dtype());
  CheckNumbers("normal_like", x.dtype(), "mean", mean, "stddev", stddev, stddev >= 0);
  ops::RandomNormal(x.mesh().context(), key, {x.shape(), layout.LocalBox(x.mesh().coord()).begin},
                    mean, stddev, local);
  return DTensor(x.mesh(), layout, std::move(local));
}

DTensor Bernoulli(const DTensor& x, RandomKey key) {
  internal::CheckUsable("bernoulli", x);
  internal::CheckFloating("bernoulli", x);
  const NoGrad no_grad(x.mesh());
  const DTensor probability = Cast(x.Detach(), DType::kF64);  // One of bf16 is compared as it is.
  const DTensor is_right = LogicalAnd(Compare(CompareOp::kGreaterEqual, probability, 0.0),
                                      Compare(CompareOp::kLessEqual, probability, 1.0));
  if (IntegerItem(Cast(All(is_right), DType::kI64)) == 0)
    ThrowInvalid("bernoulli: expected probabilities in [0, 1] in ", x.ToString());
  return Cast(Compare(CompareOp::kLess, UniformLike(probability, key), probability), x.dtype());
}

DTensor Multinomial(const DTensor& given, int64_t count, bool replacement, RandomKey key) {
  internal::CheckUsable(kMultinomial, given);
  internal::CheckFloating(kMultinomial, given);
  internal::CheckRankAtLeast(kMultinomial, given, 1);
  const int64_t n = given.dim(-1);
  if (count < 0 || (count > n && (!replacement || n == 0))) {
    ThrowInvalid(kMultinomial, ": expected a count from 0 to ", n, " of ", given.ToString(),
                 ", got ", count);
  }
  const NoGrad no_grad(given.mesh());
  const DTensor x = Cast(given.Detach(), DType::kF64);
  Dims shape = x.shape();
  shape[shape.size() - 1] = count;
  if (shape.NumElements() == 0) return Zeros(x.mesh(), shape, DType::kI64, PlacementsOfLines(x));
  const DTensor cumulative = CumSum(x, -1);
  const DTensor total = Slice(cumulative, -1, n - 1, 1);
  const DTensor is_right =
      LogicalAnd(All(Compare(CompareOp::kGreaterEqual, x, 0.0), {-1}, /*keepdim=*/true),
                 LogicalAnd(IsFinite(total), Compare(CompareOp::kGreater, total, 0.0)));
  if (Item(Cast(All(is_right), DType::kI64)) == 0) {
    ThrowInvalid(kMultinomial,
                 ": expected finite numbers of at least 0, not all 0, in each line "
                 "of ",
                 given.ToString());
  }
  const std::vector<Placement> placements = PlacementsOfLines(x);
  if (replacement) {
    // The end is 1, above all shares, and what has no probability is no step.
    const DTensor share = Uniform(x.mesh(), shape, DType::kF64, placements, key);
    return SearchSorted(Div(cumulative, total), share, /*right=*/true);
  }
  // The largest of log x + Gumbel noise (Gumbel, 1954; as a sample without replacement: Yellott,
  // 1977).
  const DTensor noise = Uniform(x.mesh(), x.shape(), DType::kF64, placements, key);
  const DTensor scores = Sub(Log(x), Log(Neg(Log1p(Neg(noise)))));
  const auto [best, indices] = TopK(scores, count);
  if (std::isinf(Item(Min(best))) && Item(Min(best)) < 0) {
    ThrowInvalid(kMultinomial, ": fewer than ", count, " elements above 0 in a line of ",
                 given.ToString());
  }
  return indices;
}

}  // namespace shardmesh
