// SPDX-License-Identifier: Apache-2.0
//
// What a program must keep to go on later, as ordered names and values: the weights of a module,
// what an optimizer remembers, a random state, the position in the data. Entries refer to live
// objects: saving reads them, loading writes them.
//
//   StateDict state;
//   state.Merge("model", nn::State(model));
//   state.Merge("optim", optimizer.State());
//   state.Bind("step", &step);                       // int64_t step
//   state.Add("note", std::string("first run"));
#ifndef SHARDMESH_STATE_STATE_DICT_H_
#define SHARDMESH_STATE_STATE_DICT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/placement/layout.h"
#include "shardmesh/tensor/dtype.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh {

/// A tensor that has a place and no values yet: a parameter on meta, a moment before the first
/// step. Saving leaves it out; loading creates it in its layout, without a detour.
struct UnsetTensor {
  DeviceMesh mesh;
  Layout layout;
  DType dtype = DType::kF32;
  MemoryCategory category = MemoryCategory::kParameters;
};

struct StateList;

/// DTensor: saved by boxes, loaded in place whatever the layout.
/// Tensor: a small one that every rank has, alike; loaded in place.
/// The others are plain: alike on all ranks as well.
using StateValue =
    std::variant<int64_t, double, bool, std::string, StateList, Tensor, DTensor, UnsetTensor>;

struct StateList {
  std::vector<StateValue> items;
};

/// "i64", "f64", "bool", "string", "list of 3", "f32[3,5]", "f32[8,5] [S(0)] @ [dp=2]".
std::string DescribeStateValue(const StateValue& value);

struct StateEntry {
  std::string name;
  /// Further names of the same value: those of a tied parameter.
  std::vector<std::string> aliases;
  /// The value, or what reads it each time.
  StateValue value;
  std::function<StateValue()> get;
  /// Takes a plain value, or the tensor made for an UnsetTensor, after all of a load has been
  /// checked and read. Without it a plain value is replaced in `value`.
  std::function<void(StateValue)> set;
  /// What it names may not exist: if a checkpoint lacks it, `clear` is called instead of an error.
  std::function<void()> clear;
  /// The part of the (whole, global) tensor that is meant, in place of all of it.
  std::optional<Box> region;

  StateValue Get() const { return get ? get() : value; }
  /// The shape that is saved: of the region, or the global one. None of a plain value.
  std::optional<Dims> Shape() const;
};

/// The name and the aliases.
std::vector<std::string> AllNames(const StateEntry& entry);

/// Value type; copies refer to the same live objects, which must outlive it. Belongs to a rank.
/// Names are non-empty, and so are their parts between the dots.
class StateDict {
 public:
  /// Errors, of all that add: throw Error(kInvalidArgument) naming the name if it is malformed or
  /// there already.
  void Add(StateEntry entry);
  void Add(std::string name, StateValue value);
  /// A variable: read when the state is saved, written when it is loaded.
  void Bind(std::string name, int64_t* variable);
  void Bind(std::string name, double* variable);
  void Bind(std::string name, bool* variable);
  void Bind(std::string name, std::string* variable);
  /// Adds all entries of `other` as "prefix.name"; as they are if `prefix` is empty.
  void Merge(std::string_view prefix, const StateDict& other);

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  const std::vector<StateEntry>& entries() const { return entries_; }
  /// By its name or an alias; null if there is none.
  const StateEntry* Find(std::string_view name) const;
  /// Gives a plain value to what entry `index` refers to, or a tensor to an UnsetTensor.
  void Assign(size_t index, StateValue value);
  /// The value of a plain entry. Errors: throws Error(kNotFound) naming the name, and
  /// Error(kInvalidArgument) naming it and what it is if it is of another type.
  int64_t Integer(std::string_view name) const;
  double Number(std::string_view name) const;  ///< A double, or an integer.
  std::string Text(std::string_view name) const;

  /// A line an entry: name, value, layout.
  std::string ToString() const;

 private:
  const StateEntry& Get(std::string_view name) const;

  std::vector<StateEntry> entries_;
  absl::flat_hash_map<std::string, size_t> index_;  // Names and aliases.
};

// Views of a StateDict: the same live objects under other names. Aliases are treated like names.

/// The entries below "prefix.", without it.
StateDict Below(const StateDict& state, std::string_view prefix);
StateDict WithPrefix(const StateDict& state, std::string_view prefix);
/// Those for which `keep` is true; of an entry with aliases, its first kept name becomes the name.
StateDict Filter(const StateDict& state, const std::function<bool(std::string_view name)>& keep);
/// Under the names that `rename` gives. Errors: throws Error(kInvalidArgument) naming two entries
/// that get one name.
StateDict Rename(const StateDict& state,
                 const std::function<std::string(std::string_view name)>& rename);
/// Replaces a tensor by consecutive parts along `dim`, in its place: a fused weight by those that
/// another program knows. "qkv.weight" [18, 6] in parts {{"q.weight", 6}, {"k.weight", 6},
/// {"v.weight", 6}} along dim 0.
/// Errors: throws Error(kNotFound) naming `name`, and Error(kInvalidArgument) if it is no tensor,
/// an UnsetTensor, or the extents do not sum up to that of the dim.
StateDict SplitEntry(const StateDict& state, std::string_view name, int dim,
                     const std::vector<std::pair<std::string, int64_t>>& parts);

}  // namespace shardmesh

#endif  // SHARDMESH_STATE_STATE_DICT_H_
