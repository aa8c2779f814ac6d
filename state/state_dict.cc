// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/state/state_dict.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/quoted.h"

namespace shardmesh {
namespace {

std::string Shown(std::string_view name) { return Quoted(name, /*max_chars=*/200); }

void CheckName(std::string_view name) {
  const bool has_empty_part = name.empty() || name.front() == '.' || name.back() == '.' ||
                              name.find("..") != std::string_view::npos;
  if (has_empty_part)
    ThrowInvalid("StateDict: ", Shown(name), " is no name: it has an empty part between dots");
}

template <typename T>
void BindVariable(StateDict& state, std::string name, T* variable) {
  if (variable == nullptr) ThrowInvalid("StateDict: ", Shown(name), " is bound to no variable");
  StateEntry entry;
  entry.name = name;
  entry.value = *variable;
  entry.get = [variable] { return StateValue(*variable); };
  entry.set = [variable, name](StateValue value) {
    if (T* given = std::get_if<T>(&value)) {
      *variable = *std::move(given);
      return;
    }
    ThrowInvalid("StateDict: ", Shown(name), " is ", DescribeStateValue(*variable),
                 ", and was given ", DescribeStateValue(value));
  };
  state.Add(std::move(entry));
}

// The names of an entry that `rename` keeps (a name each, "" for none): the first becomes its name.
std::optional<StateEntry> Renamed(const StateEntry& entry,
                                  const std::function<std::string(std::string_view)>& rename) {
  std::vector<std::string> names;
  for (const std::string& old : AllNames(entry)) {
    std::string name = rename(old);
    if (!name.empty()) names.push_back(std::move(name));
  }
  if (names.empty()) return std::nullopt;
  StateEntry renamed = entry;
  renamed.name = names[0];
  renamed.aliases.assign(names.begin() + 1, names.end());
  return renamed;
}

StateDict RenamedAll(const StateDict& state,
                     const std::function<std::string(std::string_view)>& rename) {
  StateDict renamed;
  for (const StateEntry& entry : state.entries()) {
    if (std::optional<StateEntry> other = Renamed(entry, rename)) renamed.Add(*std::move(other));
  }
  return renamed;
}

}  // namespace

std::string DescribeStateValue(const StateValue& value) {
  struct Describe {
    std::string operator()(int64_t) const { return "i64"; }
    std::string operator()(double) const { return "f64"; }
    std::string operator()(bool) const { return "bool"; }
    std::string operator()(const std::string&) const { return "string"; }
    std::string operator()(const StateList& list) const {
      return absl::StrCat("list of ", list.items.size());
    }
    std::string operator()(const Tensor& x) const {
      return x ? absl::StrCat(std::string(Name(x.dtype())), x.shape().ToString()) : "no tensor";
    }
    std::string operator()(const DTensor& x) const { return x ? x.ToString() : "no tensor"; }
    std::string operator()(const UnsetTensor& x) const {
      return absl::StrCat(std::string(Name(x.dtype)), x.layout.ToString(), " (unset)");
    }
  };
  return std::visit(Describe(), value);
}

std::vector<std::string> AllNames(const StateEntry& entry) {
  std::vector<std::string> names = {entry.name};
  names.insert(names.end(), entry.aliases.begin(), entry.aliases.end());
  return names;
}

std::optional<Dims> StateEntry::Shape() const {
  if (region) return region->Extents();
  const StateValue current = Get();
  if (const auto* x = std::get_if<DTensor>(&current)) return x->shape();
  if (const auto* x = std::get_if<Tensor>(&current)) return x->shape();
  if (const auto* x = std::get_if<UnsetTensor>(&current)) return x->layout.global_shape();
  return std::nullopt;
}

// ---- building -----------------------------------------------------------------------------------

void StateDict::Add(StateEntry entry) {
  const std::vector<std::string> names = AllNames(entry);
  for (size_t i = 0; i < names.size(); ++i) {
    CheckName(names[i]);
    const bool is_repeated = std::find(names.begin(), names.begin() + i, names[i]) !=
                             names.begin() + static_cast<ptrdiff_t>(i);
    if (is_repeated || index_.contains(names[i]))
      ThrowInvalid("StateDict: the name ", Shown(names[i]), " is there twice");
  }
  for (const std::string& name : names) index_[name] = entries_.size();
  entries_.push_back(std::move(entry));
}

void StateDict::Add(std::string name, StateValue value) {
  StateEntry entry;
  entry.name = std::move(name);
  entry.value = std::move(value);
  Add(std::move(entry));
}

void StateDict::Bind(std::string name, int64_t* variable) {
  BindVariable(*this, std::move(name), variable);
}
void StateDict::Bind(std::string name, double* variable) {
  BindVariable(*this, std::move(name), variable);
}
void StateDict::Bind(std::string name, bool* variable) {
  BindVariable(*this, std::move(name), variable);
}
void StateDict::Bind(std::string name, std::string* variable) {
  BindVariable(*this, std::move(name), variable);
}

void StateDict::Merge(std::string_view prefix, const StateDict& other) {
  const StateDict renamed = prefix.empty() ? other : WithPrefix(other, prefix);
  for (const StateEntry& entry : renamed.entries()) Add(entry);
}

void StateDict::Assign(size_t index, StateValue value) {
  StateEntry& entry = entries_[index];
  if (entry.set) return entry.set(std::move(value));
  entry.value = std::move(value);
}

// ---- reading ------------------------------------------------------------------------------------

const StateEntry* StateDict::Find(std::string_view name) const {
  const auto it = index_.find(absl::string_view(name.data(), name.size()));
  return it == index_.end() ? nullptr : &entries_[it->second];
}

const StateEntry& StateDict::Get(std::string_view name) const {
  const StateEntry* entry = Find(name);
  if (entry == nullptr) Throw(absl::StatusCode::kNotFound, "StateDict: there is no ", Shown(name));
  return *entry;
}

int64_t StateDict::Integer(std::string_view name) const {
  const StateValue value = Get(name).Get();
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  ThrowInvalid("StateDict: ", Shown(name), " is ", DescribeStateValue(value), ", expected i64");
}

double StateDict::Number(std::string_view name) const {
  const StateValue value = Get(name).Get();
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  ThrowInvalid("StateDict: ", Shown(name), " is ", DescribeStateValue(value),
               ", expected a number");
}

std::string StateDict::Text(std::string_view name) const {
  const StateValue value = Get(name).Get();
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  ThrowInvalid("StateDict: ", Shown(name), " is ", DescribeStateValue(value), ", expected string");
}

std::string StateDict::ToString() const {
  std::string text;
  for (const StateEntry& entry : entries_) {
    absl::StrAppend(&text, absl::StrJoin(AllNames(entry), " = "), "  ",
                    DescribeStateValue(entry.Get()));
    if (entry.region) absl::StrAppend(&text, ", of which ", entry.region->ToString());
    text += "\n";
  }
  return text;
}

// ---- views --------------------------------------------------------------------------------------

StateDict WithPrefix(const StateDict& state, std::string_view prefix) {
  return RenamedAll(state, [&](std::string_view name) {
    return absl::StrCat(std::string(prefix), ".", std::string(name));
  });
}

StateDict Below(const StateDict& state, std::string_view prefix) {
  const std::string begin = std::string(prefix) + ".";
  return RenamedAll(state, [&](std::string_view name) {
    return std::string(name.starts_with(begin) ? name.substr(begin.size()) : "");
  });
}

StateDict Filter(const StateDict& state, const std::function<bool(std::string_view name)>& keep) {
  return RenamedAll(state,
                    [&](std::string_view name) { return std::string(keep(name) ? name : ""); });
}

StateDict Rename(const StateDict& state,
                 const std::function<std::string(std::string_view name)>& rename) {
  return RenamedAll(state, [&](std::string_view name) {
    std::string renamed = rename(name);
    CheckName(renamed);
    return renamed;
  });
}

StateDict SplitEntry(const StateDict& state, std::string_view name, int dim,
                     const std::vector<std::pair<std::string, int64_t>>& parts) {
  const StateEntry* split = state.Find(name);
  if (split == nullptr) Throw(absl::StatusCode::kNotFound, "SplitEntry: there is no ", Shown(name));
  const StateValue value = split->Get();
  if (!std::holds_alternative<DTensor>(value) && !std::holds_alternative<Tensor>(value)) {
    ThrowInvalid("SplitEntry: ", Shown(name), " is ", DescribeStateValue(value),
                 ", expected a tensor with values");
  }
  const Box whole = split->region ? *split->region : Box::Whole(*split->Shape());
  if (dim < 0 || dim >= whole.num_dims())
    ThrowInvalid("SplitEntry: ", Shown(name), " of shape ", whole.Extents().ToString(),
                 " has no dim ", dim);
  int64_t sum = 0;
  for (const auto& [part, extent] : parts) {
    if (extent < 0) ThrowInvalid("SplitEntry: part ", Shown(part), " has extent ", extent);
    sum += extent;
  }
  if (sum != whole.Extents()[dim]) {
    ThrowInvalid("SplitEntry: the parts of ", Shown(name), " have ", sum, " along dim ", dim,
                 ", and it has ", whole.Extents()[dim]);
  }
  StateDict result;
  for (const StateEntry& entry : state.entries()) {
    if (&entry != split) {
      result.Add(entry);
      continue;
    }
    Box region = whole;
    for (const auto& [part, extent] : parts) {
      region.end[dim] = region.begin[dim] + extent;
      StateEntry piece = entry;
      piece.name = part;
      piece.aliases.clear();
      piece.region = region;
      result.Add(std::move(piece));
      region.begin[dim] = region.end[dim];
    }
  }
  return result;
}

}  // namespace shardmesh
