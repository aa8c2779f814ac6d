// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/internal/writes.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

using internal::DeviceOf;
using internal::EmptyOn;
using internal::RequireDType;
using internal::RequireOneFloatingDType;
using internal::RequireShape;

void RequireIndices(const char* op, const Tensor& ids) {
  if (ids.dtype() == DType::kI64 || ids.dtype() == DType::kI32) return;
  ThrowInvalid(op, ": indices are i64 or i32, got ", ids.ToString());
}

void RequireTable(const char* op, const Tensor& table) {
  RequireOneFloatingDType(op, {&table});
  if (table.num_dims() != 2) ThrowInvalid(op, ": the table needs two dims, got ", table.ToString());
}

// Logits [.., classes], and one target and one of each statistic per row.
void CheckCrossEntropy(const char* op, const Tensor& x, const Tensor& targets,
                       std::initializer_list<std::pair<const char*, const Tensor*>> statistics) {
  RequireOneFloatingDType(op, {&x});
  internal::RequireRank(op, "x", x, 1);
  RequireIndices(op, targets);
  const Dims rows = internal::WithoutLast(x.shape());
  RequireShape(op, "targets", targets, rows);
  for (const auto& [name, statistic] : statistics) {
    RequireShape(op, name, *statistic, rows);
    RequireDType(op, name, *statistic, internal::AccumulatorDType(x.dtype()));
  }
}

}  // namespace

void CheckIndices(ExecutionContext& context, const char* op, const Tensor& ids, int64_t low,
                  int64_t high, std::optional<int64_t> ignored) {
  RequireIndices(op, ids);
  const auto bad = KernelsFor(ids.device()).find_out_of_range(context, ids, low, high, ignored);
  if (!bad) return;
  Throw(absl::StatusCode::kOutOfRange, op, ": index ", *bad, " is outside [", low, ", ", high, ")");
}

Tensor Embedding(ExecutionContext& context, const Tensor& ids, const Tensor& table,
                 int64_t first_row, std::optional<DType> out_dtype) {
  const Device device = DeviceOf("embedding", {&table, &ids});
  RequireTable("embedding", table);
  RequireIndices("embedding", ids);
  Dims shape = ids.shape();
  shape.push_back(table.dim(1));
  const DType dtype = internal::ResultDType("embedding", table.dtype(), out_dtype);
  Tensor out = EmptyOn(context, device, shape, dtype);
  KernelsFor(device).embedding(context, ids, table, first_row, out);
  return out;
}

void EmbeddingBackward(ExecutionContext& context, const Tensor& grad, const Tensor& ids,
                       int64_t first_row, bool accumulate, Tensor& dtable) {
  const char* op = "embedding backward";
  const Device device = DeviceOf(op, {&grad, &ids, &dtable});
  RequireOneFloatingDType(op, {&grad});
  RequireTable(op, dtable);
  RequireIndices(op, ids);
  Dims shape = ids.shape();
  shape.push_back(dtable.dim(1));
  RequireShape(op, "the gradient", grad, shape);
  if (dtable.dtype() != grad.dtype())
    RequireDType(op, "dtable", dtable, internal::AccumulatorDType(grad.dtype()));
  internal::RequireApart(op, dtable, {&grad, &ids});
  KernelsFor(device).embedding_backward(context, grad, ids, first_row, accumulate, dtable);
  dtable.storage()->BumpVersion();
}

CrossEntropyTermsResult CrossEntropyTerms(ExecutionContext& context, const Tensor& x,
                                          const Tensor& targets, int64_t first_class,
                                          const Tensor& max) {
  const Device device = DeviceOf("cross_entropy", {&x, &targets, &max});
  CheckCrossEntropy("cross_entropy", x, targets, {{"max", &max}});
  CrossEntropyTermsResult result{EmptyOn(context, device, max.shape(), max.dtype()),
                                 EmptyOn(context, device, max.shape(), max.dtype())};
  KernelsFor(device).cross_entropy_terms(context, x, targets, first_class, max, result.sum_exp,
                                         result.picked);
  return result;
}

Tensor CrossEntropyBackward(ExecutionContext& context, const Tensor& x, const Tensor& targets,
                            int64_t first_class, const Tensor& max, const Tensor& sum_exp,
                            const Tensor& scale, int64_t ignore_index) {
  const char* op = "cross_entropy backward";
  const Device device = DeviceOf(op, {&x, &targets, &max, &sum_exp, &scale});
  CheckCrossEntropy(op, x, targets, {{"max", &max}, {"sum_exp", &sum_exp}, {"scale", &scale}});
  Tensor dx = EmptyOn(context, device, x.shape(), x.dtype());
  KernelsFor(device).cross_entropy_backward(context, x, targets, first_class, max, sum_exp, scale,
                                            ignore_index, dx);
  return dx;
}

}  // namespace shardmesh::ops
