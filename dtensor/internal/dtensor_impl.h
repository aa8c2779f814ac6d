// SPDX-License-Identifier: Apache-2.0
//
// What a DTensor handle points to.
#ifndef SHARDMESH_DTENSOR_INTERNAL_DTENSOR_IMPL_H_
#define SHARDMESH_DTENSOR_INTERNAL_DTENSOR_IMPL_H_

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/internal/memory_order.h"
#include "shardmesh/dtensor/internal/node.h"
#include "shardmesh/dtensor/runtime.h"

namespace shardmesh::internal {

struct DTensorImpl {
  DTensorImpl(DeviceMesh mesh, Layout layout, Tensor local, Runtime* runtime)
      : mesh(std::move(mesh)),
        layout(std::move(layout)),
        local(std::move(local)),
        runtime(runtime),
        dtype(this->local.dtype()) {}
  ~DTensorImpl() {
    if (grad_fn != nullptr) Drop(std::move(grad_fn));
  }
  DTensorImpl(const DTensorImpl&) = delete;
  DTensorImpl& operator=(const DTensorImpl&) = delete;

  DeviceMesh mesh;
  Layout layout;
  Tensor local;
  Runtime* runtime;
  /// Of the global tensor. A Partial of bf16 or f16 may hold f32 (partial_precision.h).
  DType dtype;

  bool requires_grad = false;
  /// False for the result of a view op or redistribution that is a copy, so that writing it in
  /// place would be lost, and for one that repeats elements.
  bool may_write = true;
  MemoryOrder order = MemoryOrder::RowMajor();

  std::shared_ptr<Node> grad_fn;  // Null for leaves.
  int output = 0;                 // Which result of grad_fn this is.
  std::shared_ptr<Leaf> leaf;     // Made when first needed.
  DTensor grad;

  /// This value in other layouts: a move that several uses need is made once.
  struct Moved {
    Layout layout;
    int64_t version;
    Tensor local;
  };
  std::vector<Moved> moved;
};

[[noreturn]] void ThrowNotUsable(const char* op, const DTensor& x);

/// `x` in layout `to`, outside the graph; as internal::Move.
DTensor MoveTo(const DTensor& x, const Layout& to, std::string_view op, bool may_write = false);

/// A copy outside the graph, accounted as a gradient.
DTensor CopyOfGradient(const DTensor& x);

/// `x` if this is the only handle and memory of it, else a copy: what may be written in place
/// without any other tensor changing.
DTensor SoleOwner(DTensor x);

/// The leaf record of a tensor that is a leaf; made if there is none.
const std::shared_ptr<Leaf>& LeafOf(const std::shared_ptr<DTensorImpl>& impl);

/// The edge by which a gradient of `x` travels; nothing if x requires none.
Edge EdgeTo(const DTensor& x);

/// Errors: throws Error(kInvalidArgument) naming `op` if `x` is no tensor;
/// Error(kFailedPrecondition) naming op, tensor and rank if the rank has ended or the caller runs
/// on another thread.
inline void CheckUsable(const char* op, const DTensor& x) {
  if (!x || !x.impl()->mesh.IsUsableHere()) ThrowNotUsable(op, x);
}

/// Throws Error(kInvalidArgument) naming `op` and both if they belong to different ranks or meshes.
void CheckTogether(const char* op, const DTensor& a, const DTensor& b);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_DTENSOR_IMPL_H_
