// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/internal/contract.h"

#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::internal {
namespace {

constexpr Op kContract{"contract"};

bool Has(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

// The labels by role: in both operands and the result, in one and the result, in both alone.
struct Roles {
  Roles(const std::string& a, const std::string& b, const std::string& to) {
    for (const char label : a) {
      if (!Has(b, label)) {
        only_a += label;
      } else {
        (Has(to, label) ? batch : summed) += label;
      }
    }
    for (const char label : b) {
      if (!Has(a, label)) only_b += label;
    }
  }
  std::string batch, only_a, only_b, summed;
};

// `x`, whose dims are `from`, with its dims in the order of `to`.
Tensor InOrder(const Tensor& x, const std::string& from, const std::string& to) {
  std::vector<int> dims;
  for (const char label : to) dims.push_back(static_cast<int>(from.find(label)));
  return x.Permute(dims);
}

// The product of the extents of `labels`, and these appended to `shape`.
int64_t Extents(const Tensor& x, const std::string& from, const std::string& labels, Dims* shape) {
  int64_t product = 1;
  for (const char label : labels) {
    const int64_t extent = x.shape()[static_cast<int>(from.find(label))];
    product *= extent;
    if (shape != nullptr) shape->push_back(extent);
  }
  return product;
}

// One batched matrix product of the local tensors.
Tensor LocalContract(ExecutionContext& context, const Tensor& a, const std::string& labels_a,
                     const Tensor& b, const std::string& labels_b, const std::string& to,
                     DType dtype) {
  const Roles roles(labels_a, labels_b, to);
  Dims shape;
  const int64_t batch = Extents(a, labels_a, roles.batch, &shape);
  const int64_t m = Extents(a, labels_a, roles.only_a, &shape);
  const int64_t n = Extents(b, labels_b, roles.only_b, &shape);
  const int64_t k = Extents(a, labels_a, roles.summed, nullptr);
  const Tensor left = ops::Reshape(
      context, InOrder(a, labels_a, roles.batch + roles.only_a + roles.summed), {batch, m, k});
  const Tensor right = ops::Reshape(
      context, InOrder(b, labels_b, roles.batch + roles.summed + roles.only_b), {batch, k, n});
  const Tensor product = ops::MatMul(context, left, right, dtype);
  return InOrder(*product.TryView(shape), roles.batch + roles.only_a + roles.only_b, to);
}

OpRule ContractRule(const DTensor& a, const std::string& labels_a, const DTensor& b,
                    const std::string& labels_b, const std::string& to) {
  Rule rule;
  std::string known;
  const auto factors = [&](const std::string& labels) {
    Rule::FactorOfDim dims;
    for (const char label : labels) {
      if (!Has(known, label)) {
        known += label;
        rule.factors.push_back({std::string(1, label), false, {}});
      }
      dims.push_back(static_cast<int>(known.find(label)));
    }
    return dims;
  };
  rule.inputs = {factors(labels_a), factors(labels_b)};
  rule.outputs = {factors(to)};
  rule.linear = {1u, 2u};
  Dims shape;
  for (const char label : to) {
    shape.push_back(Has(labels_a, label) ? a.shape()[static_cast<int>(labels_a.find(label))]
                                         : b.shape()[static_cast<int>(labels_b.find(label))]);
  }
  return {std::move(rule), {shape}};
}

}  // namespace

DTensor Contract(const DTensor& a, const std::string& labels_a, const DTensor& b,
                 const std::string& labels_b, const std::string& to) {
  OpCall call(kContract, {&a, &b});
  for (const std::string* labels : {&labels_a, &labels_b, &to}) {
    call.Attribute(labels->size());
    for (const char label : *labels) call.Attribute(label);
  }
  call.Decide([&] { return ContractRule(a, labels_a, b, labels_b, to); });
  DTensor y =
      call.ResultOf(a.dtype(), LocalContract(call.context(), call.local(0), labels_a, call.local(1),
                                             labels_b, to, call.LocalDType(a.dtype())));
  if (!call.Records()) return y;
  call.Record({&y}, [labels_a, labels_b, to, sa = Saved(call.input(0)), sb = Saved(call.input(1))](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor x = sa.Get(kContract.name), w = sb.Get(kContract.name);
    if (out.Needs(0)) out.Set(0, Contract(grads[0], to, w, labels_b, labels_a));
    if (out.Needs(1)) out.Set(1, Contract(x, labels_a, grads[0], to, labels_b));
  });
  return y;
}

}  // namespace shardmesh::internal
