// SPDX-License-Identifier: Apache-2.0
//
// Entering and leaving the global view.
#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/checkpoint_frame.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr int64_t kNoTensor = -1;  // In place of a number of dims.
constexpr int kMisfitsNamed = 8;   // In one message.
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

bool Repeats(const Tensor& x) {
  for (int d = 0; d < x.num_dims(); ++d) {
    if (x.dim(d) > 1 && x.strides()[d] == 0) return true;
  }
  return false;
}

// How the local tensors of all ranks lie in memory.
struct Storing {
  bool contiguous = true;
  bool repeats = false;  // Some rank's is expanded.
};

// Every rank learns what every rank passed: {fingerprint of the global arguments, number of dims,
// 0 if contiguous, 2 if it repeats elements, else 1, extents}.
Storing CompareAcrossRanks(const DeviceMesh& mesh, const Tensor& local, const Layout& layout) {
  ExecutionContext& context = mesh.context();
  Communicator& group = mesh.WorldGroup();
  const std::string arguments =
      absl::StrCat(local ? std::string(Name(local.dtype())) : "", layout.ToString());
  std::vector<int64_t> mine(3 + Dims::kMaxRank, 0);
  if (local) {
    mine[0] = Fingerprint(arguments);
    mine[1] = local.num_dims();
    mine[2] = local.IsContiguous() ? 0 : Repeats(local) ? 2 : 1;
    std::copy(local.shape().begin(), local.shape().end(), mine.begin() + 3);
  } else {
    mine[1] = kNoTensor;
  }
  const Dims row = {static_cast<int64_t>(mine.size())};
  AllGatherItem item;
  item.source = Tensor::FromValues<int64_t>(context, row, mine);
  for (int i = 0; i < group.size(); ++i)
    item.targets.push_back(Tensor::Empty(context, row, DType::kI64));
  const std::vector<Tensor> received = item.targets;
  group.AllGather({std::move(item)}, kFromLocal.name).Wait();
  std::vector<std::vector<int64_t>> passed;
  for (const Tensor& row_of_rank : received) passed.push_back(row_of_rank.ToVector<int64_t>());
  const auto has_tensor = [](const std::vector<int64_t>& row) { return row[1] != kNoTensor; };
  const auto first = std::find_if(passed.begin(), passed.end(), has_tensor);
  for (int r = 0; r < group.size(); ++r) {
    if (has_tensor(passed[r]) && passed[r][0] != (*first)[0]) {
      ThrowInvalid("FromLocal: ranks ", first - passed.begin(), " and ", r,
                   " of the mesh passed different dtypes, global shapes or placements; ",
                   "this rank passed ", arguments);
    }
  }
  Storing storing;
  std::string misfits;
  int num_misfits = 0;
  for (int r = 0; r < group.size(); ++r) {
    const bool is_tensor = has_tensor(passed[r]);
    storing.contiguous &= passed[r][2] == 0;
    storing.repeats |= passed[r][2] == 2;
    const Dims shape(std::span<const int64_t>(passed[r].data() + 3,
                                              static_cast<size_t>(is_tensor ? passed[r][1] : 0)));
    const Dims expected = layout.LocalShape(mesh.shape().CoordOf(r));
    if ((is_tensor && shape == expected) || ++num_misfits > kMisfitsNamed) continue;
    absl::StrAppend(&misfits, misfits.empty() ? "" : ", ", "rank ", r, " passed ",
                    is_tensor ? shape.ToString() : "no tensor", " instead of ",
                    expected.ToString());
  }
  if (num_misfits == 0) return storing;
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

namespace internal {

DTensor MoveTo(const DTensor& x, const Layout& to, std::string_view op, bool may_write) {
  const DTensorImpl& impl = *x.impl();
  Tensor local = Move(*impl.runtime, impl.mesh, impl.local, impl.dtype, impl.layout, to, op);
  const bool aliases = local.storage() == impl.local.storage();  // The same on all ranks.
  auto result = std::make_shared<DTensorImpl>(impl.mesh, to, std::move(local), impl.runtime);
  result->dtype = impl.dtype;
  result->may_write = may_write;
  if (aliases) result->order = impl.order;
  return DTensor(std::move(result));
}

}  // namespace internal

DTensor Distribute(const DeviceMesh& mesh, const Tensor& full,
                   const std::vector<Placement>& placements) {
  mesh.CheckUsable("Distribute");
  if (!full) ThrowInvalid("Distribute: there is no tensor");
  const Layout target = LayoutOn(mesh, placements, full.shape());
  CheckPartial("Distribute", full.dtype(), target);
  ExecutionContext& context = mesh.context();
  // R -> target is local for any target.
  const Box box = target.LocalBox(mesh.coord());
  Tensor local = ops::Clone(context, internal::ViewOfBox(full, Box::Whole(full.shape()), box));
  const Layout read_as_replicate = target.PartialAsReplicate();
  return internal::MoveTo(DTensor(mesh, read_as_replicate, std::move(local)), target, "distribute",
                          /*may_write=*/true);
}

DTensor FromBoxes(const DeviceMesh& mesh, const Dims& global_shape, DType dtype,
                  const std::vector<Placement>& placements,
                  const std::function<void(const Box& box, Tensor& local)>& fill) {
  mesh.CheckUsable("FromBoxes");
  if (fill == nullptr) ThrowInvalid("FromBoxes: `fill` is empty");
  const Layout layout = LayoutOn(mesh, placements, global_shape);
  if (layout.HasPartial())
    ThrowInvalid("FromBoxes: ", layout.ToString(), " has a Partial placement");
  const Box box = layout.LocalBox(mesh.coord());
  Tensor local = Tensor::Empty(mesh.context(), box.Extents(), dtype);
  const Tensor given = local;
  fill(box, local);
  if (!local || local.storage() != given.storage() || !(local.shape() == given.shape()) ||
      !(local.strides() == given.strides()) || local.offset() != given.offset() ||
      local.dtype() != dtype) {
    ThrowInvalid("FromBoxes: `fill` replaced the tensor it was to fill, ", given.ToString(),
                 ", by ", local ? local.ToString() : "no tensor", "; copy into it instead");
  }
  return DTensor(mesh, layout, std::move(local));
}

DTensor FromLocal(const DeviceMesh& mesh, const Tensor& local, const Dims& global_shape,
                  const std::vector<Placement>& placements) {
  mesh.CheckUsable("FromLocal");
  const Layout layout = LayoutOn(mesh, placements, global_shape);
  const Storing storing = CompareAcrossRanks(mesh, local, layout);
  CheckPartial("FromLocal", local.dtype(), layout);
  DTensor x(mesh, layout, local);
  if (!storing.contiguous) x.impl()->order = internal::MemoryOrder::Unknown();
  x.impl()->may_write = !storing.repeats;
  return x;
}

LocalValue ToLocal(const DTensor& x, const std::vector<LocalGradient>& replicated_gradient) {
  internal::CheckUsable("ToLocal", x);
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
    DTensor gradient(x.mesh(), layout, grad);
    gradient.impl()->order = internal::MemoryOrder::Unknown();
    Backward(x, gradient);
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
  internal::CheckUsable("Redistribute", x);
  Layout layout;
  const absl::Status status = Catch([&] { layout = LayoutOn(x.mesh(), placements, x.shape()); });
  if (!status.ok()) Throw(status.code(), "Redistribute: of ", x.ToString(), ": ", status.message());
  return Redistribute(x, layout);
}

DTensor Redistribute(const DTensor& x, const Layout& layout) {
  internal::CheckUsable("Redistribute", x);
  if (!layout) ThrowInvalid("Redistribute: the target of ", x.ToString(), " is an empty Layout");
  if (!(layout.global_shape() == x.shape()) || !(layout.mesh() == x.layout().mesh())) {
    ThrowInvalid("Redistribute: ", layout.ToString(), " is not a layout of ", x.ToString());
  }
  if (x.dtype() == DType::kBool && layout.HasPartial()) {
    ThrowInvalid("Redistribute: ", x.ToString(), " cannot be ", layout.ToString(),
                 ", as bools are not reduced; cast it to i32");
  }
  if (internal::IsKept(kRedistribute.name, x))
    return internal::Kept(x, [&] { return Redistribute(x, layout); });
  Runtime& runtime = *x.impl()->runtime;
  const DTensor* operands[] = {&x};
  if (runtime.checkpoint != nullptr) runtime.checkpoint->NoteOp(kRedistribute, operands, false);
  DTensor y = internal::MoveTo(x, layout, kRedistribute.name);
  if (!x.RequiresGrad() || !runtime.grad_enabled) return y;
  // An anchor even where nothing moved: the gradient is delivered in the layout that the value came
  // in.
  internal::RecordNode(
      runtime.NextSequence(), kRedistribute.name, operands, {&y},
      [layout = x.layout().PartialAsReplicate()](std::span<const DTensor> grads, Gradients& out) {
        out.Set(0, Redistribute(grads[0], layout));
      });
  return y;
}

DTensor ReadAs(const DTensor& x, const Layout& layout) {
  internal::CheckUsable("ReadAs", x);
  const internal::DTensorImpl& impl = *x.impl();
  if (layout.mesh() != impl.layout.mesh() || layout.global_shape() != x.shape()) return {};
  for (const Step& step :
       impl.runtime->plans.Get(impl.layout, layout, SizeOf(impl.local.dtype()))->plan().steps) {
    for (int axis : step.axes) {
      if (layout.mesh().size(axis) > 1) return {};
    }
  }
  return internal::MoveTo(x, layout, "read_as", impl.may_write);
}

Tensor FullTensor(const DTensor& x) {
  internal::CheckUsable("FullTensor", x);
  const Layout whole = Layout::Replicated(x.layout().mesh(), x.shape());
  const Tensor local = internal::MoveTo(x, whole, kFullTensor.name).local();
  return local.storage() == x.local().storage() ? ops::Clone(x.mesh().context(), local) : local;
}

double Item(const DTensor& x) {
  internal::CheckUsable("Item", x);
  if (x.NumElements() != 1) ThrowInvalid("Item: expected one element, got ", x.ToString());
  return FullTensor(x).Item();
}

int64_t IntegerItem(const DTensor& x) {
  if (x.NumElements() != 1) ThrowInvalid("IntegerItem: expected one element, got ", x.ToString());
  return FullTensor(x).IntegerItem();
}

}  // namespace shardmesh
