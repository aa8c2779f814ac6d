// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/state_tensors.h"

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::checkpoint::internal {
namespace {

bool IsPlain(const StateValue& value) {
  return !std::holds_alternative<Tensor>(value) && !std::holds_alternative<DTensor>(value) &&
         !std::holds_alternative<UnsetTensor>(value);
}

absl::Status Refuse(const StateTensor& tensor, const StateValue& value, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", Quoted(tensor.name), " (", DescribeStateValue(value), ") ", why));
}

absl::Status FillFrom(const DTensor& x, const StateValue& value, StateTensor& tensor) {
  if (!x) return Refuse(tensor, value, "has no values");
  if (x.layout().HasPartial()) return Refuse(tensor, value, "is Partial; redistribute it first");
  tensor.mesh = x.mesh();
  tensor.layout = x.layout();
  tensor.local_box = x.layout().LocalBox(x.mesh().coord());
  tensor.local = x.local();
  tensor.dtype = x.dtype();
  return absl::OkStatus();
}

absl::Status Append(StateTensor tensor, const StateValue& value, const std::optional<Box>& region,
                    std::vector<StateTensor>& tensors) {
  if (const auto* x = std::get_if<DTensor>(&value)) {
    SHARDMESH_RETURN_IF_ERROR(FillFrom(*x, value, tensor));
    tensor.region = region ? *region : Box::Whole(x->shape());
  } else if (const auto* plain = std::get_if<Tensor>(&value)) {
    if (!*plain) return Refuse(tensor, value, "has no values");
    tensor.local = *plain;
    tensor.dtype = plain->dtype();
    tensor.local_box = Box::Whole(plain->shape());
    tensor.region = region ? *region : tensor.local_box;
  }
  if (tensor.local.device() != Device::Cpu()) return Refuse(tensor, value, "is not on the CPU");
  if (tensor.local.storage()->IsReleased()) return Refuse(tensor, value, "has been released");
  if (tensor.local.dtype() != tensor.dtype)
    return Refuse(tensor, value,
                  absl::StrCat("is held in ", std::string(Name(tensor.local.dtype()))));
  if (!tensor.local.IsContiguous()) return Refuse(tensor, value, "is not contiguous");
  tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status AppendItems(size_t entry, const std::string& name, const StateList& list,
                         std::vector<StateTensor>& tensors) {
  for (size_t i = 0; i < list.items.size(); ++i) {
    const std::string item = absl::StrCat(name, ".", i);
    if (const auto* inner = std::get_if<StateList>(&list.items[i])) {
      SHARDMESH_RETURN_IF_ERROR(AppendItems(entry, item, *inner, tensors));
    } else if (!IsPlain(list.items[i]) && !std::holds_alternative<UnsetTensor>(list.items[i])) {
      StateTensor tensor;
      tensor.entry = entry;
      tensor.name = item;
      SHARDMESH_RETURN_IF_ERROR(Append(std::move(tensor), list.items[i], std::nullopt, tensors));
    }
  }
  return absl::OkStatus();
}

StateValue WithoutTensors(const StateValue& value) {
  if (const auto* list = std::get_if<StateList>(&value)) {
    StateList plain;
    for (const StateValue& item : list->items) plain.items.push_back(WithoutTensors(item));
    return plain;
  }
  return IsPlain(value) ? value : StateValue(Tensor());
}

}  // namespace

absl::StatusOr<std::vector<StateTensor>> TensorsOf(const StateDict& state) {
  std::vector<StateTensor> tensors;
  for (size_t i = 0; i < state.size(); ++i) {
    const StateEntry& entry = state.entries()[i];
    const StateValue value = entry.Get();
    if (const auto* list = std::get_if<StateList>(&value)) {
      SHARDMESH_RETURN_IF_ERROR(AppendItems(i, entry.name, *list, tensors));
    } else if (!IsPlain(value) && !std::holds_alternative<UnsetTensor>(value)) {
      StateTensor tensor;
      tensor.entry = i;
      tensor.name = entry.name;
      tensor.aliases = entry.aliases;
      SHARDMESH_RETURN_IF_ERROR(Append(std::move(tensor), value, entry.region, tensors));
    }
  }
  return tensors;
}

std::vector<std::pair<std::string, StateValue>> ValuesOf(const StateDict& state) {
  std::vector<std::pair<std::string, StateValue>> values;
  for (const StateEntry& entry : state.entries()) {
    const StateValue value = entry.Get();
    if (IsPlain(value)) values.emplace_back(entry.name, WithoutTensors(value));
  }
  return values;
}

Communicator* RanksOf(const StateDict& state) {
  Communicator* ranks = nullptr;
  const auto consider = [&](const DeviceMesh& mesh) {
    Communicator& group = mesh.WorldGroup();
    if (ranks == nullptr || group.size() > ranks->size()) ranks = &group;
  };
  for (const StateEntry& entry : state.entries()) {
    const StateValue value = entry.Get();
    if (const auto* x = std::get_if<DTensor>(&value)) {
      if (*x) consider(x->mesh());
    } else if (const auto* unset = std::get_if<UnsetTensor>(&value)) {
      consider(unset->mesh);
    }
  }
  return ranks;
}

}  // namespace shardmesh::checkpoint::internal
