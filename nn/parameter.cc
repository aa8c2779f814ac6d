// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/parameter.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::nn {
namespace {

void Fill(ExecutionContext& context, const Init& init, RandomKey key, const RandomBox& box,
          Tensor& out) {
  switch (init.kind) {
    case Init::Kind::kConstant:
      return ops::Fill(context, out, init.a);
    case Init::Kind::kNormal:
      return ops::RandomNormal(context, key, box, init.a, init.b, out);
    case Init::Kind::kUniform:
      return ops::RandomUniform(context, key, box, init.a, init.b, out);
  }
}

}  // namespace

uint64_t RandomStreamOf(std::string_view name, uint64_t salt) {
  return XXH64(name.data(), name.size(), salt);
}

Parameter::Parameter(const Dims& shape, DType dtype, Init init)
    : state_(std::make_shared<State>()) {
  if (!IsFloating(dtype)) {
    ThrowInvalid("a parameter has a floating-point dtype, not ", std::string(Name(dtype)));
  }
  state_->shape = shape;
  state_->dtype = dtype;
  state_->init = init;
}

Buffer::Buffer(const Dims& shape, DType dtype, Init init) {
  if (!IsFloating(dtype) && init.kind != Init::Kind::kConstant) {
    ThrowInvalid("a buffer of random values has a floating-point dtype, not ",
                 std::string(Name(dtype)));
  }
  state_ = std::make_shared<State>();
  state_->shape = shape;
  state_->dtype = dtype;
  state_->init = init;
  state_->requires_grad = false;
  state_->is_buffer = true;
}

void Parameter::set_requires_grad(bool value) {
  if (value && state_->is_buffer)
    ThrowInvalid("buffer ", ToString(), " cannot require a gradient: make it a parameter");
  state_->requires_grad = value;
  if (state_->data) DTensor(state_->data).SetRequiresGrad(value);
}

void Parameter::Place(const DeviceMesh& mesh, const Layout& layout) {
  if (layout.global_shape() != shape() || layout.mesh() != mesh.shape()) {
    ThrowInvalid("parameter ", ToString(), " cannot be placed as ", layout.ToString(), " on mesh ",
                 mesh.ToString());
  }
  if (layout.HasPartial()) {
    ThrowInvalid("parameter ", ToString(), " cannot be Partial: ", layout.ToString());
  }
  if (IsPlaced() && state_->layout == layout && state_->mesh == mesh) return;
  if (!state_->placement_owner.empty()) {
    Throw(absl::StatusCode::kFailedPrecondition, "parameter ", ToString(), " cannot be placed as ",
          layout.ToString(), ": ", state_->placement_owner,
          " relies on its placement and must come after all other changes of it");
  }
  if (state_->data) {
    if (state_->mesh != mesh) {
      ThrowInvalid("parameter ", ToString(), " has values and cannot go to mesh ", mesh.ToString());
    }
    NoGrad no_grad(mesh);
    const DTensor moved = Redistribute(state_->data, layout);
    // A copy: the move may have returned a view that keeps all the values alive.
    Tensor local =
        Tensor::Empty(mesh.context(), moved.local().shape(), dtype(), MemoryCategory::kParameters);
    ops::Copy(mesh.context(), moved.local(), local);
    state_->data.ReplaceValues(layout, std::move(local));
  }
  state_->mesh = mesh;
  state_->layout = layout;
}

void Parameter::Materialize(uint64_t seed) {
  if (!IsPlaced()) {
    Throw(absl::StatusCode::kFailedPrecondition, "parameter ", ToString(),
          " has no mesh yet: call Parallelize, FullyShard or PlaceReplicated first");
  }
  if (name().empty() && init().kind != Init::Kind::kConstant) {
    Throw(absl::StatusCode::kFailedPrecondition, "parameter ", ToString(),
          " has no name, from which its random values follow");
  }
  ExecutionContext& context = mesh().context();
  const Box box = layout().LocalBox(mesh().coord());
  Tensor local = Tensor::Empty(context, box.Extents(), dtype(), MemoryCategory::kParameters);
  Fill(context, init(), RandomKey{.seed = seed, .stream = RandomStreamOf(name())},
       RandomBox{.global_shape = shape(), .begin = box.begin}, local);
  SetData(DTensor(mesh(), layout(), std::move(local)));
}

void Parameter::SetData(DTensor data) {
  if (!IsPlaced()) {
    Throw(absl::StatusCode::kFailedPrecondition, "parameter ", ToString(), " has no mesh yet");
  }
  if (data.dtype() != dtype() || data.layout() != layout() || data.mesh() != mesh()) {
    ThrowInvalid("parameter ", ToString(), " cannot take the values of ", data.ToString());
  }
  if (!data.IsRowMajor()) {
    ThrowInvalid("parameter ", ToString(), " cannot take values that are not contiguous");
  }
  if (state_->data) {
    state_->data.ReplaceValues(layout(), data.local());
    return;
  }
  data = data.Detach();
  data.SetRequiresGrad(state_->requires_grad);
  state_->data = std::move(data);
}

Tensor Parameter::Full() const { return FullTensor(data()); }

void Parameter::SetFull(const Tensor& full) {
  if (!IsPlaced()) {
    Throw(absl::StatusCode::kFailedPrecondition, "parameter ", ToString(), " has no mesh yet");
  }
  if (!(full.shape() == shape()) || full.dtype() != dtype()) {
    ThrowInvalid("parameter ", ToString(), " cannot take the values of ",
                 std::string(Name(full.dtype())), full.shape().ToString());
  }
  ExecutionContext& context = mesh().context();
  const Box box = layout().LocalBox(mesh().coord());
  Tensor part = full;
  for (int d = 0; d < shape().size(); ++d) {
    part = part.Narrow(d, box.begin[d], box.end[d] - box.begin[d]);
  }
  const bool has_values = IsMaterialized();
  Tensor local = has_values
                     ? data().local()
                     : Tensor::Empty(context, box.Extents(), dtype(), MemoryCategory::kParameters);
  ops::Copy(context, part, local);
  if (!has_values) SetData(DTensor(mesh(), layout(), std::move(local)));
}

const DTensor& Parameter::data() const {
  if (!IsMaterialized()) {
    Throw(absl::StatusCode::kFailedPrecondition, "parameter ", ToString(),
          " has no values yet: call Initialize or LoadParameters first");
  }
  return state_->data;
}

void Parameter::CheckGradientIsReduced(std::string_view user) const {
  if (!HasUnreducedGradient()) return;
  Throw(absl::StatusCode::kFailedPrecondition, absl::string_view(user.data(), user.size()),
        ": parameter ", ToString(),
        " holds the gradient of micro-batches that FullyShard has not reduced; run the last "
        "micro-batch with SetRequiresGradientSync(module, true)");
}

std::string Parameter::ToString() const {
  if (state_ == nullptr) return "(no parameter)";
  return absl::StrCat(name().empty() ? "(unnamed)" : name(), " ", std::string(Name(dtype())),
                      IsPlaced() ? layout().ToString() : shape().ToString() + " on meta");
}

}  // namespace shardmesh::nn
