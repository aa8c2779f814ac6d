// SPDX-License-Identifier: Apache-2.0
//
// Checks of a collective's operands that need no other rank, the versions of what it writes, and
// the bytes that a rank sends. The same for every backend.
#ifndef SHARDMESH_COMM_INTERNAL_OPERANDS_H_
#define SHARDMESH_COMM_INTERNAL_OPERANDS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "shardmesh/comm/communicator.h"

namespace shardmesh::internal {

/// Where a collective was called.
struct CallSite {
  CollectiveKind kind;
  std::string_view op;
  std::string_view group;
  int rank;
  int size;
  Device device;
};

// Each throws Error(kInvalidArgument) naming the call site, the operand and what was expected of
// it.
void CheckOperands(const CallSite& site, std::span<const AllGatherItem> batch);
void CheckOperands(const CallSite& site, std::span<const ReduceScatterItem> batch);
void CheckOperands(const CallSite& site, std::span<const AllReduceItem> batch);
void CheckOperands(const CallSite& site, std::span<const AllToAllItem> batch);
/// A broadcast.
void CheckOperands(const CallSite& site, std::span<const Tensor> tensors, int root);

// Raises the version of each storage under a target by one.
void BumpVersions(std::span<const AllGatherItem> batch);
void BumpVersions(std::span<const ReduceScatterItem> batch);
void BumpVersions(std::span<const AllReduceItem> batch);
void BumpVersions(std::span<const AllToAllItem> batch);
/// A broadcast: alike on its root, which writes nothing.
void BumpVersions(std::span<const Tensor> tensors);

// CollectiveEvent::bytes_sent of rank site.rank.
int64_t BytesSent(const CallSite& site, std::span<const AllGatherItem> batch);
int64_t BytesSent(const CallSite& site, std::span<const ReduceScatterItem> batch);
int64_t BytesSent(const CallSite& site, std::span<const AllReduceItem> batch);
int64_t BytesSent(const CallSite& site, std::span<const AllToAllItem> batch);
int64_t BytesSent(const CallSite& site, std::span<const Tensor> tensors, int root);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_COMM_INTERNAL_OPERANDS_H_
