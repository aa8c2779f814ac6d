// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/dtensor.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"

namespace shardmesh {

DTensor::DTensor(DeviceMesh mesh, Layout layout, Tensor local) {
  Runtime* runtime = &Runtime::Of(mesh);
  impl_ =
      std::make_shared<internal::DTensorImpl>(std::move(mesh), layout, std::move(local), runtime);
}

internal::DTensorImpl& DTensor::Checked() const {
  if (impl_ == nullptr) {
    Throw(absl::StatusCode::kFailedPrecondition, "a DTensor that is no tensor was used as one");
  }
  return *impl_;
}

DType DTensor::dtype() const { return Checked().local.dtype(); }
const Layout& DTensor::layout() const { return Checked().layout; }
const DeviceMesh& DTensor::mesh() const { return Checked().mesh; }
const Tensor& DTensor::local() const { return Checked().local; }
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

bool DTensor::RequiresGrad() const { return Checked().requires_grad; }
bool DTensor::IsLeaf() const { return Checked().grad_fn == nullptr; }
const DTensor& DTensor::grad() const { return Checked().grad; }

void DTensor::SetGrad(DTensor grad) {
  if (grad) {
    internal::CheckTogether("SetGrad", *this, grad);
    if (!(grad.layout() == layout().PartialAsReplicate()) || grad.dtype() != dtype()) {
      ThrowInvalid("SetGrad: gradient ", grad.ToString(), " does not fit ", ToString());
    }
  }
  Checked().grad = std::move(grad);
}

DTensor DTensor::Detach() const {
  const internal::DTensorImpl& impl = Checked();
  DTensor result(
      std::make_shared<internal::DTensorImpl>(impl.mesh, impl.layout, impl.local, impl.runtime));
  result.impl_->may_write = impl_->may_write;
  return result;
}

void DTensor::RegisterGradHook(std::function<DTensor(const DTensor& grad)> hook) {
  if (!RequiresGrad()) {
    Throw(absl::StatusCode::kFailedPrecondition, "RegisterGradHook: ", ToString(),
          " requires no gradient");
  }
  if (impl_->grad_fn != nullptr) {
    impl_->grad_fn->hooks.push_back({impl_->output, std::move(hook)});
  } else {
    internal::LeafOf(impl_)->hooks.push_back(std::move(hook));
  }
}

std::string DTensor::ToString() const {
  if (impl_ == nullptr) return "no tensor";
  return absl::StrCat(std::string(Name(dtype())), layout().ToString());
}

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) {
  return out << tensor.ToString();
}

}  // namespace shardmesh
