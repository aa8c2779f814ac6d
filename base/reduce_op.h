// SPDX-License-Identifier: Apache-2.0
//
// How partial values combine: the reduction of a Partial placement and of a reducing collective.
#ifndef SHARDMESH_BASE_REDUCE_OP_H_
#define SHARDMESH_BASE_REDUCE_OP_H_

#include <cstdint>
#include <string_view>

namespace shardmesh {

enum class ReduceOp : uint8_t { kSum, kMin, kMax, kProduct };

/// "sum", "min", "max" or "product".
constexpr std::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "?";
}

}  // namespace shardmesh

#endif  // SHARDMESH_BASE_REDUCE_OP_H_
