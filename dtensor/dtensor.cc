// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/dtensor.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

DTensor::DTensor(DeviceMesh mesh, Layout layout, Tensor local) {
  Runtime* runtime = &Runtime::Of(mesh);
  impl_ =
      std::make_shared<internal::DTensorImpl>(std::move(mesh), layout, std::move(local), runtime);
}

namespace internal {

void ThrowNotUsable(const char* op, const DTensor& x) {
  if (!x) ThrowInvalid(op, ": an operand is no tensor (a default-constructed DTensor)");
  x.mesh().CheckUsable(absl::StrCat(op, " of ", x.ToString()));
  Throw(absl::StatusCode::kInternal, op, ": ", x.ToString(), " is usable");
}

DTensor SoleOwner(DTensor x) {
  const DTensorImpl& impl = *x.impl();
  const bool is_sole = x.impl().use_count() == 1 && impl.local.storage().use_count() == 1 &&
                       impl.grad_fn == nullptr && !impl.requires_grad && impl.may_write;
  return is_sole ? x : CopyOfGradient(x);
}

DTensor CopyOfGradient(const DTensor& x) {
  const DTensorImpl& impl = *x.impl();
  Tensor copy = Tensor::Empty(impl.mesh.context(), impl.local.shape(), impl.local.dtype(),
                              MemoryCategory::kGradients);
  ops::Copy(impl.mesh.context(), impl.local, copy);
  const auto result =
      std::make_shared<DTensorImpl>(impl.mesh, impl.layout, std::move(copy), impl.runtime);
  result->dtype = impl.dtype;
  return DTensor(result);
}

}  // namespace internal

internal::DTensorImpl& DTensor::Checked(const char* use) const {
  if (impl_ == nullptr) {
    Throw(absl::StatusCode::kFailedPrecondition, "DTensor::", use,
          " of a DTensor that is no tensor (default-constructed)");
  }
  return *impl_;
}

DType DTensor::dtype() const { return Checked("dtype").dtype; }
const Layout& DTensor::layout() const { return Checked("layout").layout; }
const DeviceMesh& DTensor::mesh() const { return Checked("mesh").mesh; }
const Tensor& DTensor::local() const { return Checked("local").local; }
bool DTensor::IsRowMajor() const { return Checked("IsRowMajor").order.IsRowMajor(); }
Box DTensor::LocalBox() const { return layout().LocalBox(mesh().coord()); }

DTensor& DTensor::SetRequiresGrad(bool requires_grad) {
  if (!IsLeaf()) {
    Throw(absl::StatusCode::kFailedPrecondition, "SetRequiresGrad: ", ToString(),
          " is the result of an op; only leaves can be told to require a gradient (or use Detach)");
  }
  if (requires_grad && !IsFloating(dtype())) {
    ThrowInvalid("SetRequiresGrad: ", ToString(), " is not of a floating-point dtype");
  }
  impl_->requires_grad = requires_grad;
  return *this;
}

bool DTensor::RequiresGrad() const { return Checked("RequiresGrad").requires_grad; }
bool DTensor::IsLeaf() const { return Checked("IsLeaf").grad_fn == nullptr; }
const DTensor& DTensor::grad() const { return Checked("grad").grad; }

void DTensor::SetGrad(DTensor grad) {
  internal::DTensorImpl& impl = Checked("SetGrad");
  if (grad) {
    internal::CheckUsable("SetGrad", *this);
    internal::CheckTogether("SetGrad", *this, grad);
    const Layout expected = layout().PartialAsReplicate();
    if (!(grad.layout() == expected)) {
      DTensor read = ReadAs(grad, expected);
      if (!read) ThrowInvalid("SetGrad: gradient ", grad.ToString(), " does not fit ", ToString());
      grad = std::move(read);
    }
    if (grad.dtype() != dtype())
      ThrowInvalid("SetGrad: gradient ", grad.ToString(), " does not fit ", ToString());
  }
  impl.grad = grad ? internal::SoleOwner(std::move(grad)) : DTensor();
}

DTensor DTensor::Detach() const {
  const internal::DTensorImpl& impl = Checked("Detach");
  DTensor result(
      std::make_shared<internal::DTensorImpl>(impl.mesh, impl.layout, impl.local, impl.runtime));
  result.impl_->dtype = impl.dtype;
  result.impl_->may_write = impl.may_write;
  result.impl_->order = impl.order;
  return result;
}

void DTensor::ReplaceValues(const Layout& layout, Tensor local) {
  internal::DTensorImpl& impl = Checked("ReplaceValues");
  if (!IsLeaf()) ThrowInvalid("ReplaceValues: ", ToString(), " is the result of an op, not a leaf");
  impl.local.storage()->BumpVersion();
  if (!(layout == impl.layout)) impl.grad = DTensor();
  impl.layout = layout;
  impl.local = std::move(local);
  impl.order = internal::MemoryOrder::RowMajor();
  impl.moved.clear();
  if (impl.leaf != nullptr) impl.leaf->layout = layout;
}

HookHandle DTensor::RegisterGradHook(std::function<DTensor(const DTensor& grad)> hook) {
  if (hook == nullptr) ThrowInvalid("RegisterGradHook: the hook of ", ToString(), " is empty");
  if (!RequiresGrad()) {
    Throw(absl::StatusCode::kFailedPrecondition, "RegisterGradHook: ", ToString(),
          " requires no gradient");
  }
  RemovableHook removable(std::move(hook));
  HookHandle handle = removable.handle();
  if (impl_->grad_fn != nullptr) {
    impl_->grad_fn->hooks.push_back({impl_->output, std::move(removable)});
  } else {
    internal::LeafOf(impl_)->hooks.push_back(std::move(removable));
  }
  return handle;
}

HookHandle DTensor::RegisterPostAccumulateGradHook(std::function<void(const DTensor& leaf)> hook) {
  if (hook == nullptr)
    ThrowInvalid("RegisterPostAccumulateGradHook: the hook of ", ToString(), " is empty");
  if (!IsLeaf())
    ThrowInvalid("RegisterPostAccumulateGradHook: ", ToString(), " is the result of an op");
  RemovableHook removable(std::move(hook));
  HookHandle handle = removable.handle();
  internal::LeafOf(impl_)->post_accumulate_hooks.push_back(std::move(removable));
  return handle;
}

std::string DTensor::ToString() const {
  if (impl_ == nullptr) return "no tensor";
  return absl::StrCat(std::string(Name(dtype())), layout().ToString());
}

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) {
  return out << tensor.ToString();
}

}  // namespace shardmesh
