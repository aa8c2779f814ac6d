// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr Op kEmbedding{"embedding"}, kEmbeddingBackward{"embedding_backward"};

// ids "b..", table "v h", full "b.. h".
struct LookupRule {
  explicit LookupRule(const Dims& ids) {
    rule = internal::FactorsOf(ids);
    b = rule.inputs[0];
    rule.factors.push_back({"v", false, {}});
    rule.factors.push_back({"h", false, {}});
    const int v = static_cast<int>(b.size());
    table = {v, v + 1};
    full = b;
    full.push_back(v + 1);
  }
  Rule rule;
  Rule::FactorOfDim b, table, full;
};

// Only the layout of `table` matters: it decides which rows each rank makes. Its values are not
// read.
void WriteTableGradient(Gradients& out, int operand, const DTensor& grad, const DTensor& ids,
                        const DTensor& table) {
  OpCall call(kEmbeddingBackward, {&grad, &ids, &table});
  call.Decide([&] {
    LookupRule lookup(ids.shape());
    lookup.rule.inputs = {lookup.full, lookup.b, lookup.table};
    lookup.rule.outputs = {lookup.table};
    lookup.rule.linear = {1u};
    return OpRule{std::move(lookup.rule), {table.shape()}};
  });
  const int64_t first_row = call.output_layout().LocalBox(grad.mesh().coord()).begin[0];
  out.Write(operand, grad.mesh(), call.output_layout(), table.dtype(),
            [&](Tensor& target, bool accumulate) {
              ops::EmbeddingBackward(call.context(), call.local(0), call.local(1), first_row,
                                     accumulate, target);
            });
}

}  // namespace

DTensor Embedding(const DTensor& ids, const DTensor& table) {
  OpCall call(kEmbedding, {&ids, &table});
  call.Decide([&] {
    if (table.num_dims() != 2)
      ThrowInvalid(kEmbedding.name, ": expected a table of 2 dims, got ", table.ToString());
    if (IsFloating(ids.dtype()) || ids.dtype() == DType::kBool) {
      ThrowInvalid(kEmbedding.name, ": expected ids of an integer dtype, got ", ids.ToString());
    }
    LookupRule lookup(ids.shape());
    lookup.rule.inputs = {lookup.b, lookup.table};
    lookup.rule.outputs = {lookup.full};
    lookup.rule.linear = {2u};
    Dims shape = ids.shape();
    shape.push_back(table.dim(1));
    return OpRule{std::move(lookup.rule), {shape}};
  });
  ops::CheckIndices(call.context(), kEmbedding.name, call.local(0), 0, table.dim(0));
  const int64_t first_row = call.InputBox(1).begin[0];
  DTensor y =
      call.ResultOf(table.dtype(), ops::Embedding(call.context(), call.local(0), call.local(1),
                                                  first_row, call.LocalDType(table.dtype())));
  if (!call.Records()) return y;
  call.Record({&y}, [si = Saved(call.input(0)), like = call.input(1)](
                        std::span<const DTensor> grads, Gradients& out) {
    if (out.Needs(1)) WriteTableGradient(out, 1, grads[0], si.Get(kEmbedding.name), like);
  });
  return y;
}

}  // namespace shardmesh
