// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/gradients.h"

#include <string>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/dtensor/internal/node.h"
#include "shardmesh/dtensor/runtime.h"
#include "shardmesh/dtensor/saved_tensor_hooks.h"

namespace shardmesh {

Gradients::Gradients(Node& node, const Runtime& runtime) : node_(node), runtime_(runtime) {
  values_.resize(node.edges().size());
  delivered_.resize(node.edges().size(), false);
}

const internal::Edge& Gradients::EdgeOf(int operand) const {
  if (operand < 0 || operand >= static_cast<int>(node_.edges().size())) {
    ThrowInvalid("backward of ", node_.name(), ": there is no operand ", operand, " among the ",
                 node_.edges().size(), " of the op");
  }
  return node_.edges()[operand];
}

bool Gradients::Needs(int operand) const { return static_cast<bool>(EdgeOf(operand)); }

void Gradients::Write(int operand, const DeviceMesh& mesh, const Layout& layout, DType dtype,
                      absl::FunctionRef<void(Tensor& target, bool accumulate)> kernel) {
  const std::shared_ptr<internal::Leaf>& leaf = EdgeOf(operand).leaf;
  const auto kernel_writes = [&](DType target) {
    return target == dtype || (IsSmall(dtype) && target == DType::kF32);
  };
  if (leaf != nullptr && leaf->sink != nullptr && !leaf->HasHooks() &&
      kernel_writes(leaf->sink->dtype()) && leaf->sink->Accepts(layout)) {
    GradSink::Target target = leaf->sink->Open(layout);
    kernel(target.buffer, target.accumulate);
    delivered_[operand] = true;
    return;
  }
  Tensor fresh = Tensor::Empty(mesh.context(), layout.LocalShape(mesh.coord()),
                               runtime_.StoredDType(dtype, layout));
  kernel(fresh, /*accumulate=*/false);
  values_[operand] = DTensor(mesh, layout, std::move(fresh));
  values_[operand].impl()->dtype = dtype;
}

bool Saved::Pack(const DTensor& x) {
  const Runtime& runtime = *x.impl()->runtime;
  if (runtime.saved_tensor_hooks == nullptr || !runtime.grad_enabled) return false;
  packed_ = runtime.saved_tensor_hooks->Pack(x.Detach());
  return packed_ != nullptr;
}

Saved::Saved(const DTensor& x) {
  if (Pack(x)) return;
  value_ = x.Detach();
  version_ = x.local().storage()->version();
}

Saved::Saved(DTensor&& x) {
  if (Pack(x)) return;
  version_ = x.local().storage()->version();
  const bool is_apart = x.impl().use_count() == 1 && x.IsLeaf() && !x.RequiresGrad();
  value_ = is_apart ? std::move(x) : x.Detach();
}

namespace {

void CheckUnwritten(const char* op, const std::string& what, int64_t now, int64_t saved) {
  if (now == saved) return;
  Throw(absl::StatusCode::kFailedPrecondition, "backward of ", op, ": a value it needs, ", what,
        ", was written in place after forward (version ", now, ", saved at ", saved, ")");
}

}  // namespace

DTensor Saved::Get(const char* op) const {
  if (packed_ != nullptr) return packed_->Unpack(op);
  const int64_t now = value_.local().storage()->version();
  if (now != version_) CheckUnwritten(op, value_.ToString(), now, version_);
  return value_;
}

SavedTensorHooksScope::SavedTensorHooksScope(const DeviceMesh& mesh,
                                             std::shared_ptr<SavedTensorHooks> hooks)
    : runtime_(Runtime::Of(mesh)),
      before_(std::exchange(runtime_.saved_tensor_hooks, std::move(hooks))) {}

SavedTensorHooksScope::~SavedTensorHooksScope() {
  runtime_.saved_tensor_hooks = std::move(before_);
}

SavedTensor::SavedTensor(const Tensor& x) : value_(x), version_(x.storage()->version()) {}

const Tensor& SavedTensor::Get(const char* op) const {
  const int64_t now = value_.storage()->version();
  if (now != version_) CheckUnwritten(op, value_.ToString(), now, version_);
  return value_;
}

}  // namespace shardmesh
