// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/fuzz/branch.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/checkpoint.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/runtime.h"

namespace shardmesh::fsdp {

void Fuse::Pass() {
  if (points_left >= 0 && points_left-- == 0) throw std::runtime_error("the fuse");
}

// ---- what is gathered ---------------------------------------------------------------------------

void GatherWatch::Expect(const std::string& when) const {
  if (!is_on) return;
  const auto stats = mesh_.context().allocator()->stats(MemoryCategory::kUnshardedParameters);
  EXPECT_EQ(stats.bytes, model.bytes()) << "gathered at " << when;
  EXPECT_EQ(stats.peak_bytes, model.peak()) << "the peak until " << when;
}

GatherWatch::Call::Call(GatherWatch& watch, const nn::Module& module)
    : watch_(watch.is_on ? &watch : nullptr), module_(&module) {
  if (watch_ == nullptr) return;
  outer_ = std::exchange(watch.innermost_, this);
  is_unit_ = watch.model.IsUnit(&module);
  is_again_ = IsRecomputing(watch.mesh_);
  if (!is_unit_) return;
  if (is_again_) {
    watch.model.BeginAgain(&module);
    watch.Expect("the beginning of a call that is made again");
  } else {
    id_ = watch.model.Begin(&module);
    watch.Expect("the beginning of a call");
  }
}

GatherWatch::Call::~Call() {
  if (watch_ == nullptr) return;
  if (is_unit_) watch_->model.Fail(records_);
  EndCall();
}

void GatherWatch::Call::EndCall() {
  GatherWatch* const watch = std::exchange(watch_, nullptr);
  watch->innermost_ = outer_;
  if (outer_ != nullptr) outer_->records_ |= records_;
  if (is_again_ && outer_ == nullptr) watch->model.EndRecomputation();
}

DTensor GatherWatch::Call::Begin(bool records, const DTensor& x) {
  if (watch_ == nullptr) return x;
  records_ |= records;
  if (!is_unit_ || !records || !x.RequiresGrad()) return x;
  return WithBackwardCallback(x, [watch = watch_, id = id_] { watch->model.Leave(id); });
}

DTensor GatherWatch::Call::Aside(const DTensor& value) {
  if (watch_ == nullptr) return value;
  const std::optional<int64_t> innermost = watch_->model.MakeSide(value.RequiresGrad());
  if (!innermost) return value;
  const int64_t later = watch_->model.next_id();
  return WithBackwardCallback(value, [watch = watch_, id = *innermost, later] {
    ASSERT_TRUE(watch->model.ComeTo(id, later)) << "backward has come to another call";
    watch->Expect("the backward of a result on the side");
  });
}

DTensor GatherWatch::Call::End(const DTensor& y) {
  if (watch_ == nullptr) return y;
  GatherWatch* const watch = watch_;
  if (is_unit_ && is_again_) watch->model.EndAgain(module_, records_, y.RequiresGrad());
  if (is_unit_ && !is_again_) watch->model.End(records_, y.RequiresGrad());
  EndCall();
  if (!is_unit_ || !y.RequiresGrad()) return y;
  return WithBackwardCallback(y, [watch, id = id_] {
    ASSERT_TRUE(watch->model.Enter(id)) << "backward has come to another call";
    watch->Expect("the beginning of a call's backward");
  });
}

// ---- the module ---------------------------------------------------------------------------------

namespace {

nn::LinearOptions LayerOptions() {
  return {.bias = true, .dtype = DType::kF64, .weight_init = nn::Init::Normal(0, 0.4)};
}

}  // namespace

Branch::Branch(int64_t width, const nn::Parameter* tied, Fuse& fuse, GatherWatch& watch)
    : fuse_(fuse),
      watch_(watch),
      up_(tied == nullptr ? std::make_unique<nn::Linear>(kFeatures, width, LayerOptions())
                          : std::make_unique<nn::Linear>(*tied, LayerOptions())),
      down_(std::make_unique<nn::Linear>(up_->outputs(), kFeatures, LayerOptions())),
      unused_(RegisterParameter("unused", {3}, DType::kF64, nn::Init::Normal(0, 1))) {
  RegisterChild("up", *up_);
  RegisterChild("down", *down_);
  RegisterChild("dropout", dropout_);
}

void Branch::Adopt(const std::string& name, std::shared_ptr<Branch> child) {
  RegisterChild(name, *child);
  children_.push_back(std::move(child));
  route.push_back(static_cast<int>(children_.size()) - 1);
}

DTensor Branch::Combined(const DTensor& x) {
  const Outputs results = Call({x});
  watch_.Expect("the end of a call");
  return results.size() == 2 && uses_second ? Add(results[0], Mul(results[1], 0.25)) : results[0];
}

nn::Outputs Branch::Forward(const Inputs& inputs) {
  const DeviceMesh mesh = inputs[0].mesh();
  GatherWatch::Call call(watch_, *this);
  PassFuse(mesh);
  const bool is_recorded = Runtime::Of(mesh).grad_enabled;
  const DTensor in =
      call.Begin(is_recorded && (inputs[0].RequiresGrad() || HasTrainableParameter()), inputs[0]);
  DTensor hidden = Tanh((*up_)(in));
  if (side != nullptr) {
    const DTensor value = Mean(Square(up_->weight().active()));
    if (!IsRecomputing(mesh)) *side = call.Aside(value);
  }
  if (drops) hidden = dropout_(hidden);
  if (detaches) hidden = hidden.Detach();
  DTensor y = Add(in, Mul((*down_)(hidden), 0.5));
  for (int child : route) y = children_[child]->Combined(y);
  PassFuse(mesh);
  const DTensor second = has_second ? Sin(y) : DTensor();
  // As it was in forward.
  const bool burns = OnceInCheckpoint(mesh, [&] { return fuse_.points_left >= 0; });
  if (burns && y.RequiresGrad()) y = WithBackwardCallback(y, [&fuse = fuse_] { fuse.Pass(); });
  y = call.End(y);
  return has_second ? nn::Outputs{y, second} : nn::Outputs(y);
}

void Branch::PassFuse(const DeviceMesh& mesh) {
  OnceInCheckpoint(mesh, [this] { fuse_.Pass(); });
}

// One that forward uses.
bool Branch::HasTrainableParameter() const {
  const nn::Parameter used[] = {up_->weight(), up_->bias(), down_->weight(), down_->bias()};
  return std::any_of(std::begin(used), std::end(used),
                     [](const nn::Parameter& parameter) { return parameter.requires_grad(); });
}

}  // namespace shardmesh::fsdp
