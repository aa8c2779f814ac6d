// SPDX-License-Identifier: Apache-2.0
//
// What a DTensor handle points to.
#ifndef SHARDMESH_DTENSOR_INTERNAL_DTENSOR_IMPL_H_
#define SHARDMESH_DTENSOR_INTERNAL_DTENSOR_IMPL_H_

#include <memory>
#include <utility>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/internal/node.h"
#include "shardmesh/dtensor/runtime.h"

namespace shardmesh::internal {

struct DTensorImpl {
  DTensorImpl(DeviceMesh mesh, Layout layout, Tensor local, Runtime* runtime)
      : mesh(std::move(mesh)), layout(layout), local(std::move(local)), runtime(runtime) {}

  DeviceMesh mesh;
  Layout layout;
  Tensor local;
  Runtime* runtime;

  bool requires_grad = false;
  /// False for the result of a view op or redistribution that may share memory with only a part of
  /// the ranks' source, or not at all: writing it in place would be lost or would make replicas
  /// differ.
  bool may_write = true;

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

/// The leaf record of a tensor that is a leaf; made if there is none.
const std::shared_ptr<Leaf>& LeafOf(const std::shared_ptr<DTensorImpl>& impl);

/// The edge by which a gradient of `x` travels; nothing if x requires none.
Edge EdgeTo(const DTensor& x);

/// Throws Error(kInvalidArgument) naming `op` and both if they belong to different ranks or meshes.
void CheckTogether(const char* op, const DTensor& a, const DTensor& b);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_DTENSOR_IMPL_H_
