// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_DTENSOR_HOOK_HANDLE_H_
#define SHARDMESH_DTENSOR_HOOK_HANDLE_H_

#include <memory>
#include <utility>

namespace shardmesh {

/// Removes a hook. May be dropped: the hook stays. Belongs to a rank; hooks are removed alike on
/// all ranks.
class HookHandle {
 public:
  HookHandle() = default;
  /// Internal: what sets the flag that the caller of the hook looks at.
  explicit HookHandle(std::weak_ptr<bool> is_removed) : is_removed_(std::move(is_removed)) {}

  /// The hook is not called again. Does nothing the second time, or if what it was registered on is
  /// gone.
  void Remove() {
    if (const std::shared_ptr<bool> is_removed = is_removed_.lock()) *is_removed = true;
  }

 private:
  std::weak_ptr<bool> is_removed_;
};

/// A hook that a HookHandle can remove.
template <typename Function>
class RemovableHook {
 public:
  explicit RemovableHook(Function function) : function_(std::move(function)) {}
  HookHandle handle() const { return HookHandle(is_removed_); }
  bool is_removed() const { return *is_removed_; }
  const Function& function() const { return function_; }

 private:
  Function function_;
  std::shared_ptr<bool> is_removed_ = std::make_shared<bool>(false);
};

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_HOOK_HANDLE_H_
