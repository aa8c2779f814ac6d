// SPDX-License-Identifier: Apache-2.0
//
// Per-rank singletons, keyed by type and made on first use: how layers above keep per-rank state
// (decision caches, autograd mode) without thread-local variables and without the layers below
// knowing their types.
//
//   DispatchCache& cache = locals.Get<DispatchCache>();
#ifndef SHARDMESH_BASE_TYPE_MAP_H_
#define SHARDMESH_BASE_TYPE_MAP_H_

#include <memory>
#include <typeindex>
#include <unordered_map>

namespace shardmesh {

/// Not thread-safe: belongs to one rank. Objects are destroyed with the map.
class TypeMap {
 public:
  /// The object of type T, default-constructed by the first call.
  template <typename T>
  T& Get() {
    return *static_cast<T*>(Slot<T>().get());
  }
  /// As Get, for a holder that may outlive the map.
  template <typename T>
  std::shared_ptr<T> Share() {
    return std::static_pointer_cast<T>(Slot<T>());
  }

 private:
  template <typename T>
  std::shared_ptr<void>& Slot() {
    std::shared_ptr<void>& slot = objects_[std::type_index(typeid(T))];
    if (slot == nullptr) slot = std::make_shared<T>();
    return slot;
  }

  std::unordered_map<std::type_index, std::shared_ptr<void>> objects_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_BASE_TYPE_MAP_H_
