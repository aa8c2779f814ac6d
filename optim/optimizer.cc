// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/optim/internal/optimizer_state.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

void CheckParameters(const std::string& optimizer, const std::vector<nn::Parameter>& parameters) {
  std::unordered_set<const void*> seen;
  for (const nn::Parameter& parameter : parameters) {
    if (!parameter) ThrowInvalid(optimizer, ": one of the parameters is none");
    if (parameter.dtype() != DType::kF32 && parameter.dtype() != DType::kF64) {
      ThrowInvalid(optimizer, ": parameter ", parameter.ToString(),
                   " is neither f32 nor f64, and small updates would be lost; for a model that ",
                   "computes in a smaller dtype, keep f32 parameters and use mixed precision");
    }
    if (!seen.insert(parameter.id()).second) {
      ThrowInvalid(optimizer, ": parameter ", parameter.ToString(), " appears twice");
    }
  }
}

// A nan is in no range.
void CheckRange(const std::string& optimizer, const OptionField& field, double value) {
  if (value >= field.low && value < field.high) return;
  ThrowInvalid(
      optimizer, ": ", field.name, " is ", value, ", expected ", field.low,
      std::isinf(field.high) ? " or more, and finite" : absl::StrCat(" to below ", field.high));
}

StateValue ValueOf(const OptionField& field) {
  return std::visit([](const auto* value) { return StateValue(*value); }, field.value);
}

double ValueInRangeOf(const OptionField& field) {
  return std::visit([](const auto* value) { return static_cast<double>(*value); }, field.value);
}

// Writes the option if the value is of its type (an integer is a double too) and within its range.
void Assign(const std::string& optimizer, const OptionField& field, const StateValue& value) {
  const auto refuse = [&](const char* expected) {
    ThrowInvalid(optimizer, ": ", field.name, " is given ", DescribeStateValue(value),
                 ", expected ", expected);
  };
  const auto* integer = std::get_if<int64_t>(&value);
  if (auto* const* option = std::get_if<double*>(&field.value)) {
    const auto* number = std::get_if<double>(&value);
    if (number == nullptr && integer == nullptr) refuse("a number");
    const double given = number != nullptr ? *number : static_cast<double>(*integer);
    CheckRange(optimizer, field, given);
    **option = given;
  } else if (auto* const* count = std::get_if<int64_t*>(&field.value)) {
    if (integer == nullptr) refuse("i64");
    CheckRange(optimizer, field, static_cast<double>(*integer));
    **count = *integer;
  } else {
    const auto* flag = std::get_if<bool>(&value);
    if (flag == nullptr) refuse("bool");
    *std::get<bool*>(field.value) = *flag;
  }
}

}  // namespace

// ---- state of a parameter -----------------------------------------------------------------------

ParameterState::Entry::Entry(std::string name, DTensor tensor, bool is_zeros)
    : name(std::move(name)),
      tensor(std::move(tensor)),
      layout(this->tensor.layout()),
      local(this->tensor.local()),
      zeros_version(is_zeros ? local.storage()->version() : -1) {}

void ParameterState::Erase(std::string_view name) {
  std::erase_if(tensors_, [&](const Entry& entry) { return entry.name == name; });
  is_complete_ = false;
}

const DTensor& ParameterState::Find(std::string_view name) const {
  static const DTensor none;
  const Entry* entry = FindEntry(name);
  return entry == nullptr ? none : entry->tensor;
}

ParameterUpdate::ParameterUpdate(const nn::Parameter& parameter, const DTensor& data,
                                 ParameterState& state, std::string_view optimizer)
    : parameter(parameter),
      context(data.mesh().context()),
      step(state.step + 1),
      value(data.local()),
      gradient(ops::Contiguous(context, data.grad().local())),
      state_(state),
      optimizer_(optimizer) {}

void ParameterUpdate::ThrowUnknown(std::string_view name) const {
  ThrowInvalid(std::string(optimizer_), ": an update asks for the state ", std::string(name),
               ", which StateNames does not list");
}

// ---- construction and groups --------------------------------------------------------------------

Optimizer::Optimizer(std::string name, std::vector<nn::Parameter> parameters)
    : name_(std::move(name)),
      step_name_(name_ + "::Step"),
      parameters_(std::move(parameters)),
      states_(parameters_.size()),
      groups_(parameters_.size()) {
  CheckParameters(name_, parameters_);
}

void Optimizer::SetGroups(int num_groups, std::vector<int> groups) {
  num_groups_ = num_groups;
  groups_ = std::move(groups);
}

void Optimizer::CheckFields(const std::vector<OptionField>& fields) const {
  for (const OptionField& field : fields) {
    if (!std::holds_alternative<bool*>(field.value))
      CheckRange(name_, field, ValueInRangeOf(field));
  }
}

void Optimizer::CheckGroup(int group) const {
  if (group >= 0 && group < num_groups_) return;
  Throw(absl::StatusCode::kOutOfRange, name_, ": there is no group ", group, " of ", num_groups_);
}

double Optimizer::lr(int group) const {
  CheckGroup(group);
  return LrOf(group);
}

void Optimizer::set_lr(double lr) {
  CheckRange(name_, {.name = "lr", .value = &lr}, lr);
  for (int group = 0; group < num_groups_; ++group) SetLrOf(group, lr);
}

void Optimizer::set_lr(int group, double lr) {
  CheckGroup(group);
  CheckRange(name_, {.name = "lr", .value = &lr}, lr);
  SetLrOf(group, lr);
}

// ---- steps --------------------------------------------------------------------------------------

void Optimizer::CheckLayouts(size_t index, const DTensor& data) const {
  const nn::Parameter& parameter = parameters_[index];
  const DTensor& gradient = data.grad();
  const Layout& layout = data.layout();
  if (gradient.layout() != layout) {
    Throw(absl::StatusCode::kFailedPrecondition, name_, ": the gradient of ", parameter.ToString(),
          " is ", gradient.ToString(), ", expected the parameter's layout");
  }
  for (const ParameterState::Entry& entry : states_[index].tensors_) {
    if (entry.layout == layout) continue;
    Throw(absl::StatusCode::kFailedPrecondition, name_, ": parameter ", parameter.ToString(),
          " has moved; its optimizer state is ", entry.layout.ToString(),
          "; call Relayout() first");
  }
}

void Optimizer::Step() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].CheckGradientIsReduced(step_name_);
    const DTensor& data = parameters_[i].data();
    if (data.grad()) CheckLayouts(i, data);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    DTensor leaf = parameters_[i].data();
    if (!leaf.grad()) continue;
    MakeStates(i);
    ParameterUpdate update(parameters_[i], leaf, states_[i], name_);
    UpdateIn(groups_[i], update);
    states_[i].step = update.step;
    leaf.ZeroGrad();
  }
}

void Optimizer::ZeroGrad() {
  for (const nn::Parameter& parameter : parameters_) {
    if (!parameter.IsMaterialized()) continue;
    DTensor leaf = parameter.data();
    leaf.ZeroGrad();
  }
}

// ---- state --------------------------------------------------------------------------------------

void Optimizer::MakeStates(size_t index) {
  ParameterState& state = states_[index];
  if (state.is_complete_) return;
  for (const std::string& name : StateNamesOf(groups_[index])) {
    if (state.FindEntry(name) != nullptr) continue;
    state.tensors_.emplace_back(name, internal::ZerosBeside(parameters_[index]), /*is_zeros=*/true);
  }
  state.is_complete_ = true;
}

void Optimizer::CreateState() {
  for (const nn::Parameter& parameter : parameters_) {
    if (parameter.requires_grad()) parameter.data();  // Throws if there is none.
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].requires_grad()) MakeStates(i);
  }
}

void Optimizer::Relayout() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Layout& layout = parameters_[i].layout();
    for (ParameterState::Entry& entry : states_[i].tensors_) {
      if (entry.layout == layout) continue;
      entry = {entry.name, internal::MovedTo(entry.tensor, layout), entry.IsNew()};
    }
  }
}

void Optimizer::AddSteps(size_t index, StateDict& state) {
  const std::string name = absl::StrCat("state.", parameters_[index].name(), ".step");
  StateEntry entry;
  entry.name = name;
  entry.get = [this, index] { return StateValue(states_[index].step); };
  entry.set = [this, index, name](StateValue value) {
    const auto* step = std::get_if<int64_t>(&value);
    if (step == nullptr)
      ThrowInvalid(name_, ": ", name, " is given ", DescribeStateValue(value), ", expected i64");
    if (*step < 0) ThrowInvalid(name_, ": ", name, " is given ", *step, ", expected 0 or more");
    states_[index].step = *step;
  };
  entry.clear = [this, index] { states_[index].step = 0; };
  state.Add(std::move(entry));
}

void Optimizer::GiveState(size_t index, const std::string& name, StateValue value) {
  DTensor given = internal::TensorBeside(parameters_[index], name_, name, value);
  states_[index].Erase(name);
  states_[index].tensors_.emplace_back(name, std::move(given), /*is_zeros=*/false);
}

void Optimizer::AddTensor(size_t index, const std::string& name, StateDict& state) {
  StateEntry entry;
  entry.name = absl::StrCat("state.", parameters_[index].name(), ".", name);
  entry.get = [this, index, name]() -> StateValue {
    if (const DTensor& tensor = states_[index].Find(name)) return tensor;
    const nn::Parameter& parameter = parameters_[index];
    return UnsetTensor{.mesh = parameter.mesh(),
                       .layout = parameter.layout(),
                       .dtype = parameter.dtype(),
                       .category = MemoryCategory::kOptimizer};
  };
  entry.set = [this, index, name](StateValue value) { GiveState(index, name, std::move(value)); };
  entry.clear = [this, index, name] { states_[index].Erase(name); };
  state.Add(std::move(entry));
}

void Optimizer::AddOption(int group, const OptionField& field, StateDict& state) {
  StateEntry entry;
  entry.name = absl::StrCat("groups.", group, ".", field.name);
  entry.get = [field] { return ValueOf(field); };
  entry.set = [this, field](const StateValue& value) {
    Assign(name_, field, value);
    // Other options may need other state.
    for (ParameterState& state : states_) state.is_complete_ = false;
  };
  state.Add(std::move(entry));
}

StateDict Optimizer::State() {
  internal::CheckNamesAreUnique(name_, parameters_);
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = parameters_[i];
    if (!parameter.IsPlaced()) {
      Throw(absl::StatusCode::kFailedPrecondition, name_, ": parameter ", parameter.ToString(),
            " has no mesh yet, so its state has no place: call Parallelize, FullyShard or ",
            "PlaceReplicated first");
    }
    AddSteps(i, state);
    for (const std::string& name : StateNamesOf(groups_[i])) AddTensor(i, name, state);
  }
  for (int group = 0; group < num_groups_; ++group) {
    for (const OptionField& field : FieldsOf(group)) AddOption(group, field, state);
  }
  return state;
}

}  // namespace shardmesh::optim
