// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing: a part of forward keeps its inputs alone, and computes everything else
// that backward needs again when backward comes to it.
//
//   DTensor y = Checkpoint([&](const DTensor& h) { return block(h); }, x);
//
// The graph is that of the plain call, so hooks, several uses, several results and values that the
// function captures behave the same. What is computed again is compared with forward, op by op: a
// function that does something else the second time is an error, and so is a value from outside
// that was written in between.
#ifndef SHARDMESH_DTENSOR_CHECKPOINT_H_
#define SHARDMESH_DTENSOR_CHECKPOINT_H_

#include <any>
#include <functional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

struct CheckpointOptions {
  /// Selective checkpointing: whether the results of an op, and what it saves, are kept instead of
  /// computed again. Asked for "matmul", "linear", "attention" and "redistribute", the ops that
  /// cost most. Must do the same on all ranks and in both passes.
  std::function<bool(std::string_view op)> keep = nullptr;
};

/// fn(inputs), keeping for backward `inputs` alone. `fn` is called again in Backward, outside the
/// graph: what it refers to must live as long as the graph, and it must compute the same again (see
/// OnceInCheckpoint). At most once, and not at all if Backward needs nothing of it. May be nested:
/// the inner inputs are then computed again with the outer part. Under NoGrad it is fn(inputs).
/// Collective if `fn` is, here and in Backward.
///
/// Memory: from here to its backward, the inputs (of which some live anyway); in its backward, all
/// that `fn` saves. FullyShard gathers parameters no more often than without: once in backward, for
/// both uses.
/// Errors: throws Error(kInvalidArgument) if `inputs` has no tensor. Backward throws
/// Error(kFailedPrecondition) if an input, or another value from outside that an op of `fn` reads,
/// was written in between; naming the op, if `fn` has computed something else.
std::vector<DTensor> Checkpoint(
    std::function<std::vector<DTensor>(std::span<const DTensor> inputs)> fn,
    const std::vector<DTensor>& inputs, const CheckpointOptions& options = {});
/// The same for one input and one result.
DTensor Checkpoint(std::function<DTensor(const DTensor& x)> fn, const DTensor& x,
                   const CheckpointOptions& options = {});

/// Whether a function of Checkpoint is being computed again on this rank.
bool IsRecomputing(const DeviceMesh& mesh);

namespace internal {
std::any RunOnce(const DeviceMesh& mesh, absl::FunctionRef<std::any()> fn);
}

/// The result of fn(), which within Checkpoint is not called again: the second time the first
/// result is returned. For random keys, and for side effects such as counting. `T` is no DTensor;
/// what `fn` computes with tensors has no gradient. Outside Checkpoint it is fn().
template <typename F>
auto OnceInCheckpoint(const DeviceMesh& mesh, F&& fn) {
  using T = std::decay_t<decltype(fn())>;
  static_assert(!std::is_same_v<T, DTensor>, "use KeepInCheckpoint");
  if constexpr (std::is_void_v<T>) {
    internal::RunOnce(mesh, [&]() -> std::any {
      fn();
      return {};
    });
  } else {
    return std::any_cast<T>(internal::RunOnce(mesh, [&]() -> std::any { return T(fn()); }));
  }
}

/// The results of fn(), which, with what its ops save, are kept by the innermost Checkpoint that is
/// open instead of computed again. Outside Checkpoint it is fn(). Differentiable.
std::vector<DTensor> KeepInCheckpoint(const DeviceMesh& mesh,
                                      absl::FunctionRef<std::vector<DTensor>()> fn);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_CHECKPOINT_H_
