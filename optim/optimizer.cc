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

const ParameterState::Entry* ParameterState::FindEntry(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

void ParameterState::Erase(std::string_view name) {
  std::erase_if(tensors_, [&](const Entry& entry) { return entry.name == name; });
}

const DTensor& ParameterState::Find(std::string_view name) const {
  static const DTensor none;
  const Entry* entry = FindEntry(name);
  return entry == nullptr ? none : entry->tensor;
}

ParameterUpdate::ParameterUpdate(Optimizer& optimizer, size_t index)
    : parameter(optimizer.parameters_[index]),
      context(parameter.data().mesh().context()),
      step(optimizer.states_[index].step + 1),
      value(parameter.data().local()),
      gradient(ops::Contiguous(context, parameter.data().grad().local())),
      optimizer_(optimizer),
      index_(index) {}

DTensor ParameterUpdate::GlobalState(std::string_view name) {
  const ParameterState::Entry* entry = optimizer_.states_[index_].FindEntry(name);
  return entry != nullptr ? entry->tensor : optimizer_.MakeState(index_, name);
}

bool ParameterUpdate::IsNew(std::string_view name) const {
  const ParameterState::Entry* entry = optimizer_.states_[index_].FindEntry(name);
  return entry == nullptr || entry->zeros_version == entry->tensor.local().storage()->version();
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

void Optimizer::CheckLayouts(size_t index) const {
  const nn::Parameter& parameter = parameters_[index];
  const DTensor& data = parameter.data();
  const DTensor& gradient = data.grad();
  if (gradient.layout() != data.layout()) {
    Throw(absl::StatusCode::kFailedPrecondition, name_, ": the gradient of ", parameter.ToString(),
          " is ", gradient.ToString(), ", expected the parameter's layout");
  }
  for (const ParameterState::Entry& entry : states_[index].tensors_) {
    if (entry.tensor.layout() == data.layout()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, name_, ": parameter ", parameter.ToString(),
          " has moved; its optimizer state is ", entry.tensor.layout().ToString(),
          "; call Relayout() first");
  }
}

void Optimizer::Step() {
  for (const nn::Parameter& parameter : parameters_) parameter.CheckGradientIsReduced(step_name_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].data().grad()) CheckLayouts(i);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    DTensor leaf = parameters_[i].data();
    if (!leaf.grad()) continue;
    ParameterUpdate update(*this, i);
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

DTensor Optimizer::MakeState(size_t index, std::string_view name) {
  const std::vector<std::string> names = StateNamesOf(groups_[index]);
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    ThrowInvalid(name_, ": an update asks for the state ", std::string(name),
                 ", which StateNames does not list");
  }
  DTensor zeros = internal::ZerosBeside(parameters_[index]);
  states_[index].tensors_.push_back({.name = std::string(name),
                                     .tensor = zeros,
                                     .zeros_version = zeros.local().storage()->version()});
  return zeros;
}

void Optimizer::CreateState() {
  for (const nn::Parameter& parameter : parameters_) {
    if (parameter.requires_grad()) parameter.data();  // Throws if there is none.
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].requires_grad()) continue;
    for (const std::string& name : StateNamesOf(groups_[i])) {
      if (!states_[i].Find(name)) MakeState(i, name);
    }
  }
}

void Optimizer::Relayout() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (ParameterState::Entry& entry : states_[i].tensors_) {
      if (entry.tensor.layout() == parameters_[i].layout()) continue;
      const bool is_new = entry.zeros_version == entry.tensor.local().storage()->version();
      entry.tensor = internal::MovedTo(entry.tensor, parameters_[i].layout());
      entry.zeros_version = is_new ? entry.tensor.local().storage()->version() : -1;
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
  states_[index].tensors_.push_back({.name = name, .tensor = std::move(given)});
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
  entry.set = [this, field](const StateValue& value) { Assign(name_, field, value); };
  state.Add(std::move(entry));
}

StateDict Optimizer::State() {
  internal::CheckNamesAreUnique(name_, parameters_);
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = parameters_[i];
    const bool has_state = states_[i].step > 0 || !states_[i].tensors_.empty();
    if (!has_state && !parameter.requires_grad()) continue;
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
