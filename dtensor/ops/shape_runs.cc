// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/index_runs.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::internal {
namespace {

constexpr Op kPutRuns{"take_runs_backward"};

// The indices in, in + step, .. of `dim`, as a view.
Tensor Strided(const Tensor& x, int dim, const IndexRun& run) {
  Dims shape = x.shape(), strides = x.strides();
  shape[dim] = run.length;
  const int64_t offset = x.NumElements() == 0 ? x.offset() : x.offset() + run.in * strides[dim];
  strides[dim] *= run.step;
  if (shape.NumElements() == 0) strides = ContiguousStrides(shape);
  return x.AsStrided(shape, strides, offset);
}

// What lies between the runs.
enum class Gaps { kNone, kZero, kOther };

OpRule RunsRule(const Dims& shape, int dim, int64_t extent, Gaps gaps) {
  Rule rule = FactorsOf(shape, {dim});
  rule.outputs = {rule.inputs[0]};
  rule.outputs[0][dim] = Rule::kNotShardable;
  if (gaps == Gaps::kNone) rule.PassAll(1u);
  if (gaps == Gaps::kZero) rule.Pass(ReduceOp::kSum, 1u);
  Dims result = shape;
  result[dim] = extent;
  return {std::move(rule), {result}};
}

// Adds the gradient of each run to where its elements came from. Sums of several uses are in f32
// for a small dtype.
DTensor PutRuns(const DTensor& grad, int dim, const std::vector<IndexRun>& runs, int64_t extent) {
  OpCall call(kPutRuns, {&grad});
  call.Attribute(dim, extent).Decide([&] {
    return RunsRule(grad.shape(), dim, extent, Gaps::kZero);  // Elements that meet are added.
  });
  ExecutionContext& context = call.context();
  const DType dtype = IsSmall(grad.dtype()) ? DType::kF32 : grad.dtype();
  Tensor target = ops::Zeros(context, call.output_layout().LocalShape(grad.mesh().coord()), dtype);
  for (const IndexRun& run : runs) {
    const Tensor part = call.local(0).Narrow(dim, run.out, run.length);
    if (run.step != 0 || run.length == 1) {
      Tensor place = Strided(target, dim, run);
      ops::Accumulate(context, part, place);
    } else {
      const int dims[] = {dim};
      Tensor place = target.Narrow(dim, run.in, 1);
      ops::Accumulate(context,
                      ops::Reduce(context, ReduceOp::kSum, part, dims, /*keepdim=*/true, dtype),
                      place);
    }
  }
  return call.ResultOf(grad.dtype(), std::move(target));
}

}  // namespace

std::vector<IndexRun> RunsOf(std::span<const int64_t> map) {
  std::vector<IndexRun> runs;
  for (int64_t i = 0; i < static_cast<int64_t>(map.size()); ++i) {
    if (map[i] == kGap) continue;
    const bool follows = !runs.empty() && runs.back().out + runs.back().length == i;
    const int64_t step = follows ? map[i] - map[i - 1] : 1;
    if (follows && (runs.back().length == 1 || runs.back().step == step)) {
      runs.back().step = step;
      ++runs.back().length;
    } else {
      runs.push_back({i, map[i], 1, 1});
    }
  }
  return runs;
}

DTensor TakeRuns(const Op& op, const DTensor& x, int dim, const std::vector<IndexRun>& runs,
                 int64_t extent, double fill) {
  int64_t covered = 0;
  for (const IndexRun& run : runs) covered += run.length;
  const bool has_gaps = covered < extent;
  const Gaps gaps = !has_gaps ? Gaps::kNone : fill == 0 ? Gaps::kZero : Gaps::kOther;
  OpCall call(op, {&x});
  call.Attribute(dim, extent, gaps).Decide([&] { return RunsRule(x.shape(), dim, extent, gaps); });
  const Dims shape = call.output_layout().LocalShape(x.mesh().coord());
  const DType dtype = call.local(0).dtype();
  Tensor local = has_gaps ? ops::Full(call.context(), shape, dtype, fill)
                          : Tensor::Empty(call.context(), shape, dtype);
  for (const IndexRun& run : runs) {
    Tensor place = local.Narrow(dim, run.out, run.length);
    ops::Copy(call.context(), Strided(call.local(0), dim, run), place);
  }
  DTensor y = call.Result(std::move(local));
  call.Record({&y},
              [dim, runs, extent = x.shape()[dim]](std::span<const DTensor> grads, Gradients& out) {
                out.Set(0, PutRuns(grads[0], dim, runs, extent));
              });
  return y;
}

}  // namespace shardmesh::internal
