// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/gradients.h"

#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/internal/node.h"

namespace shardmesh {

Gradients::Gradients(Node& node) : node_(node) {
  values_.resize(node.edges().size());
  delivered_.resize(node.edges().size(), false);
}

bool Gradients::Needs(int operand) const { return static_cast<bool>(node_.edges()[operand]); }

void Gradients::Write(int operand, const DeviceMesh& mesh, const Layout& layout, DType dtype,
                      absl::FunctionRef<void(Tensor& target, bool accumulate)> kernel) {
  const std::shared_ptr<internal::Leaf>& leaf = node_.edges()[operand].leaf;
  if (leaf != nullptr && leaf->sink != nullptr && leaf->hooks.empty() &&
      leaf->sink->Accepts(layout)) {
    GradSink::Target target = leaf->sink->Open(layout);
    kernel(target.buffer, target.accumulate);
    delivered_[operand] = true;
    return;
  }
  Tensor fresh = Tensor::Empty(mesh.context(), layout.LocalShape(mesh.coord()), dtype);
  kernel(fresh, /*accumulate=*/false);
  values_[operand] = DTensor(mesh, layout, std::move(fresh));
}

Saved::Saved(const DTensor& x) : value_(x.Detach()), version_(x.local().storage()->version()) {}

Saved::Saved(DTensor&& x) : version_(x.local().storage()->version()) {
  const bool is_apart = x.impl().use_count() == 1 && x.IsLeaf() && !x.RequiresGrad();
  value_ = is_apart ? std::move(x) : x.Detach();
}

DTensor Saved::Get(const char* op) const {
  const int64_t now = value_.local().storage()->version();
  if (now != version_) {
    Throw(absl::StatusCode::kFailedPrecondition, "backward of ", op, ": a value it needs, ",
          value_.ToString(), ", was written in place after forward (version ", now, ", saved at ",
          version_, ")");
  }
  return value_;
}

}  // namespace shardmesh
