// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/fuzz/branch.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
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

void GatherWatch::BeginBackward(const GatherModel::Graph& graph) {
  graph_ = graph;
  before_ = model;
  in_backward_ = model.Backward(graph);
  next_ = 0;
}

void GatherWatch::FailBackward() {
  model = before_;
  for (size_t i = 0; i < next_; ++i) model.NotePeak(in_backward_[i]);
  model.FailBackward(graph_);
}

void GatherWatch::Expect(int64_t bytes, const std::string& when) const {
  const Allocator& memory = *mesh_.context().allocator();
  EXPECT_EQ(memory.stats(MemoryCategory::kUnshardedParameters).bytes, bytes)
      << "gathered at " << when;
}

GatherWatch::Call::Call(GatherWatch& watch, const nn::Module& module)
    : watch_(watch.is_on && watch.model.IsUnit(&module) ? &watch : nullptr) {
  if (watch_ == nullptr) return;
  watch_->model.Begin(&module);
  watch_->Expect(watch_->model.bytes(), "the beginning of a call");
}

GatherWatch::Call::~Call() {
  if (watch_ != nullptr) watch_->model.Fail();
}

DTensor GatherWatch::Call::End(bool records, const DTensor& y) {
  if (watch_ == nullptr) return y;
  GatherWatch* const watch = std::exchange(watch_, nullptr);
  watch->model.End(records, y.RequiresGrad());
  if (!y.RequiresGrad()) return y;
  return WithBackwardCallback(y, [watch] {
    ASSERT_LT(watch->next_, watch->in_backward_.size());
    watch->Expect(watch->in_backward_[watch->next_],
                  absl::StrCat("call ", watch->next_, " of backward"));
    ++watch->next_;
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
  return results.size() == 2 && uses_second ? Add(results[0], Mul(results[1], 0.25)) : results[0];
}

nn::Outputs Branch::Forward(const Inputs& x) {
  const DeviceMesh mesh = x[0].mesh();
  GatherWatch::Call call(watch_, *this);
  PassFuse(mesh);
  const bool is_recorded = Runtime::Of(mesh).grad_enabled;
  records_ = is_recorded && (x[0].RequiresGrad() || HasTrainableParameter());
  DTensor hidden = Tanh((*up_)(x[0]));
  if (side != nullptr) {
    const DTensor value = Mean(Square(up_->weight().active()));
    if (!IsRecomputing(mesh)) *side = value;
  }
  if (drops) hidden = dropout_(hidden);
  if (detaches) hidden = hidden.Detach();
  DTensor y = Add(x[0], Mul((*down_)(hidden), 0.5));
  for (int child : route) {
    y = children_[child]->Combined(y);
    records_ |= children_[child]->records_;
  }
  PassFuse(mesh);
  const DTensor second = has_second ? Sin(y) : DTensor();
  // As it was in forward.
  const bool burns = OnceInCheckpoint(mesh, [&] { return fuse_.points_left >= 0; });
  if (burns && y.RequiresGrad()) y = WithBackwardCallback(y, [&fuse = fuse_] { fuse.Pass(); });
  y = call.End(records_, y);
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
