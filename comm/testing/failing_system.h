// SPDX-License-Identifier: Apache-2.0
//
// A system that runs out of threads and memory when a test says so. A program that links this has
// its own pthread_create, aligned_alloc (where tensors get their memory) and operator new.
//
//   blocks_left = 3;  // This thread gets three more blocks of tensor memory.
//   ...
//   blocks_left = kUnlimited;
#ifndef SHARDMESH_COMM_TESTING_FAILING_SYSTEM_H_
#define SHARDMESH_COMM_TESTING_FAILING_SYSTEM_H_

#include <atomic>

namespace shardmesh::testing {

inline constexpr int kUnlimited = -1;

/// How many more calls on this thread succeed.
extern thread_local int threads_left;
extern thread_local int blocks_left;
extern thread_local int news_left;

/// How many calls for tensor memory have failed so far, on all threads.
extern std::atomic<int> failed_blocks;

}  // namespace shardmesh::testing

#endif  // SHARDMESH_COMM_TESTING_FAILING_SYSTEM_H_
