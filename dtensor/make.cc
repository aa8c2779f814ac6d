// SPDX-License-Identifier: Apache-2.0
//
// Entering and leaving the global view.
#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr int kMisfitsNamed = 8;  // In one message.
constexpr Op kFromLocal{"from_local"};
constexpr Op kFullTensor{"full_tensor"};
constexpr Op kRedistribute{"redistribute"};

Layout LayoutOn(const DeviceMesh& mesh, const std::vector<Placement>& placements,
                const Dims& shape) {
  return Layout::Make(mesh.shape(), std::span<const Placement>(placements), shape);
}

// A number that is equal for equal global arguments, whatever the process.
int64_t Fingerprint(const std::string& text) {
  return static_cast<int64_t>(XXH64(text.data(), text.size(), /*seed=*/0));
}

// Every rank learns what every rank passed: {fingerprint of the global arguments, rank, extents}.
void CompareAcrossRanks(const DeviceMesh& mesh, const Tensor& local, const Layout& layout) {
  ExecutionContext& context = mesh.context();
  Communicator& group = mesh.WorldGroup();
  const std::string arguments = absl::StrCat(std::string(Name(local.dtype())), layout.ToString());
  std::vector<int64_t> mine(2 + Dims::kMaxRank, 0);
  mine[0] = Fingerprint(arguments);
  mine[1] = local.num_dims();
  std::copy(local.shape().begin(), local.shape().end(), mine.begin() + 2);
  const Dims row = {static_cast<int64_t>(mine.size())};
  AllGatherItem item;
  item.source = Tensor::FromValues<int64_t>(context, row, mine);
  for (int i = 0; i < group.size(); ++i)
    item.targets.push_back(Tensor::Empty(context, row, DType::kI64));
  const std::vector<Tensor> received = item.targets;
  group.AllGather({std::move(item)}, kFromLocal.name).Wait();
  std::vector<std::vector<int64_t>> passed;
  for (const Tensor& row_of_rank : received) passed.push_back(row_of_rank.ToVector<int64_t>());
  for (int r = 0; r < group.size(); ++r) {
    if (passed[r][0] != passed[0][0]) {
      ThrowInvalid("FromLocal: ranks 0 and ", r,
                   " of the mesh passed different dtypes, global shapes or placements; ",
                   "this rank passed ", arguments);
    }
  }
  std::string misfits;
  int num_misfits = 0;
  for (int r = 0; r < group.size(); ++r) {
    const Dims shape(
        std::span<const int64_t>(passed[r].data() + 2, static_cast<size_t>(passed[r][1])));
    const Dims expected = layout.LocalShape(mesh.shape().CoordOf(r));
    if (shape == expected || ++num_misfits > kMisfitsNamed) continue;
    absl::StrAppend(&misfits, misfits.empty() ? "" : ", ", "rank ", r, " passed ", shape.ToString(),
                    " instead of ", expected.ToString());
  }
  if (num_misfits == 0) return;
  if (num_misfits > kMisfitsNamed)
    absl::StrAppend(&misfits, ", and ", num_misfits - kMisfitsNamed, " other ranks");
  ThrowInvalid("FromLocal: local tensors do not have the shapes of the boxes of ", arguments, ": ",
               misfits);
}

// A sum of several ranks' summands is needed along axes where the caller said so.
Layout GradientLayout(const DTensor& x, const std::vector<LocalGradient>& replicated_gradient) {
  Layout layout = x.layout();
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout.placement(axis).IsReplicate() &&
        replicated_gradient[axis] == LocalGradient::kPartialSum) {
      layout = layout.With(axis, Partial());
    }
  }
  return layout;
}

// There is no reduction of bool, on any rank.
void CheckPartial(const char* op, DType dtype, const Layout& layout) {
  if (dtype != DType::kBool || !layout.HasPartial()) return;
  ThrowInvalid(op, ": bool cannot be ", layout.ToString(),
               ", as it is not reduced; cast it to i32");
}

}  // namespace

DTensor Distribute(const DeviceMesh& mesh, const Tensor& full,
                   const std::vector<Placement>& placements) {
  const Layout target = LayoutOn(mesh, placements, full.shape());
  CheckPartial("Distribute", full.dtype(), target);
  ExecutionContext& context = mesh.context();
  // R -> target is local for any target.
  const Box box = target.LocalBox(mesh.coord());
  Tensor local = ops::Clone(context, internal::ViewOfBox(full, Box::Whole(full.shape()), box));
  const Layout read_as_replicate = target.PartialAsReplicate();
  local = internal::Move(Runtime::Of(mesh), mesh, local, read_as_replicate, target, "distribute");
  return DTensor(mesh, target, std::move(local));
}

DTensor FromBoxes(const DeviceMesh& mesh, const Dims& global_shape, DType dtype,
                  const std::vector<Placement>& placements,
                  const std::function<void(const Box& box, Tensor& local)>& fill) {
  const Layout layout = LayoutOn(mesh, placements, global_shape);
  if (layout.HasPartial())
    ThrowInvalid("FromBoxes: ", layout.ToString(), " has a Partial placement");
  const Box box = layout.LocalBox(mesh.coord());
  Tensor local = Tensor::Empty(mesh.context(), box.Extents(), dtype);
  fill(box, local);
  return DTensor(mesh, layout, std::move(local));
}

DTensor FromLocal(const DeviceMesh& mesh, const Tensor& local, const Dims& global_shape,
                  const std::vector<Placement>& placements) {
  const Layout layout = LayoutOn(mesh, placements, global_shape);
  CheckPartial("FromLocal", local.dtype(), layout);
  CompareAcrossRanks(mesh, local, layout);
  return DTensor(mesh, layout, local);
}

LocalValue ToLocal(const DTensor& x, const std::vector<LocalGradient>& replicated_gradient) {
  if (static_cast<int>(replicated_gradient.size()) != x.layout().num_axes()) {
    ThrowInvalid("ToLocal: ", replicated_gradient.size(), " gradient kinds for ", x.ToString(),
                 " with ", x.layout().num_axes(), " mesh axes");
  }
  if (x.layout().HasPartial()) {
    Throw(absl::StatusCode::kFailedPrecondition, "ToLocal: ", x.ToString(),
          " holds summands, not values; redistribute it first");
  }
  const Layout layout = GradientLayout(x, replicated_gradient);
  auto backward = [x, layout](const Tensor& grad) {
    if (!(grad.shape() == x.local().shape()) || grad.dtype() != x.dtype()) {
      ThrowInvalid("ToLocal: gradient ", grad.ToString(), " does not fit the local value ",
                   x.local().ToString());
    }
    Backward(x, DTensor(x.mesh(), layout, grad));
  };
  return {x.local(), std::move(backward)};
}

DTensor Full(const DeviceMesh& mesh, const Dims& shape, DType dtype, double value,
             const std::vector<Placement>& placements) {
  return FromBoxes(mesh, shape, dtype, placements,
                   [&](const Box&, Tensor& local) { ops::Fill(mesh.context(), local, value); });
}

DTensor Zeros(const DeviceMesh& mesh, const Dims& shape, DType dtype,
              const std::vector<Placement>& placements) {
  return Full(mesh, shape, dtype, 0.0, placements);
}

DTensor Redistribute(const DTensor& x, const std::vector<Placement>& placements) {
  return Redistribute(x, LayoutOn(x.mesh(), placements, x.shape()));
}

DTensor Redistribute(const DTensor& x, const Layout& layout) {
  if (!(layout.global_shape() == x.shape()) || !(layout.mesh() == x.layout().mesh())) {
    ThrowInvalid("Redistribute: ", layout.ToString(), " is not a layout of ", x.ToString());
  }
  CheckPartial("Redistribute", x.dtype(), layout);
  Runtime& runtime = *x.impl()->runtime;
  DTensor y(x.mesh(), layout,
            internal::Move(runtime, x.mesh(), x.local(), x.layout(), layout, kRedistribute.name));
  // The result may share memory with x on some ranks only.
  y.impl()->may_write = false;
  if (!x.RequiresGrad() || !runtime.grad_enabled) return y;
  // An anchor even where nothing moved: the gradient is delivered in the layout that the value came
  // in.
  auto backward = [layout = x.layout().PartialAsReplicate()](std::span<const DTensor> grads,
                                                             Gradients& out) {
    out.Set(0, Redistribute(grads[0], layout));
  };
  auto node = std::make_shared<internal::FunctionNode<decltype(backward)>>(
      runtime.NextSequence(), kRedistribute.name, 1, std::move(backward));
  node->edges().push_back(internal::EdgeTo(x));
  y.impl()->grad_fn = std::move(node);
  y.impl()->requires_grad = true;
  return y;
}

Tensor FullTensor(const DTensor& x) {
  const Layout whole = Layout::Replicated(x.layout().mesh(), x.shape());
  const Tensor local =
      internal::Move(*x.impl()->runtime, x.mesh(), x.local(), x.layout(), whole, kFullTensor.name);
  return ops::Clone(x.mesh().context(), local);
}

double Item(const DTensor& x) {
  if (x.NumElements() != 1) ThrowInvalid("Item: expected one element, got ", x.ToString());
  return FullTensor(x).Item();
}

int64_t IntegerItem(const DTensor& x) {
  if (x.NumElements() != 1) ThrowInvalid("IntegerItem: expected one element, got ", x.ToString());
  return FullTensor(x).IntegerItem();
}

}  // namespace shardmesh
