// SPDX-License-Identifier: Apache-2.0
//
// What happens when `operator new` finds no memory.
#ifndef SHARDMESH_COMM_INTERNAL_NEW_FAILURE_H_
#define SHARDMESH_COMM_INTERNAL_NEW_FAILURE_H_

namespace shardmesh::internal {

/// While an object of this class is alive, an `operator new` that finds no memory prints one line
/// on stderr and aborts the process, unless the program has a new-handler of its own.
///
/// Small objects are allocated in places that cannot continue with half of their state: inside hash
/// tables, destructors, and between two steps that peers wait for. Tensors do not come from
/// `operator new` (tensor/allocator.h): that there is no memory for one stays an Error.
/// Thread-safe.
class NewFailureEndsProcess {
 public:
  NewFailureEndsProcess();
  ~NewFailureEndsProcess();
  NewFailureEndsProcess(const NewFailureEndsProcess&) = delete;
  NewFailureEndsProcess& operator=(const NewFailureEndsProcess&) = delete;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_COMM_INTERNAL_NEW_FAILURE_H_
