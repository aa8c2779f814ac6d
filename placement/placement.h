// SPDX-License-Identifier: Apache-2.0
//
// How a tensor is distributed along one mesh axis.
//
//   Shard(0)      every rank of the axis holds one chunk of dim 0 (ceil-chunk; trailing chunks may
//                 be empty)
//   Replicate()   every rank holds the whole tensor
//   Partial()     every rank holds a summand; the value is the reduction over the axis
#ifndef SHARDMESH_PLACEMENT_PLACEMENT_H_
#define SHARDMESH_PLACEMENT_PLACEMENT_H_

#include <cstdint>
#include <iosfwd>
#include <string>

#include "shardmesh/base/reduce_op.h"

namespace shardmesh {

/// Immutable value type, two words.
class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };

  /// Replicate.
  constexpr Placement() = default;

  constexpr Kind kind() const { return kind_; }
  constexpr bool IsReplicate() const { return kind_ == Kind::kReplicate; }
  constexpr bool IsShard() const { return kind_ == Kind::kShard; }
  constexpr bool IsShard(int dim) const { return IsShard() && dim_ == dim; }
  constexpr bool IsPartial() const { return kind_ == Kind::kPartial; }
  /// The sharded dim as given; it may be negative until a Layout normalises it. Only for a Shard.
  constexpr int dim() const { return dim_; }
  /// Only for a Partial.
  constexpr ReduceOp op() const { return op_; }

  /// "R", "S(0)", "P(sum)".
  std::string ToString() const;

  friend constexpr bool operator==(const Placement&, const Placement&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const Placement& p) {
    return H::combine(std::move(h), p.kind_, p.op_, p.dim_);
  }

  friend constexpr Placement Shard(int dim);
  friend constexpr Placement Replicate();
  friend constexpr Placement Partial(ReduceOp op);

 private:
  constexpr Placement(Kind kind, ReduceOp op, int dim) : kind_(kind), op_(op), dim_(dim) {}

  Kind kind_ = Kind::kReplicate;
  ReduceOp op_ = ReduceOp::kSum;
  int dim_ = 0;
};

/// A negative `dim` counts from the last dim; the Layout normalises it.
constexpr Placement Shard(int dim) {
  return Placement(Placement::Kind::kShard, ReduceOp::kSum, dim);
}
constexpr Placement Replicate() { return Placement(); }
constexpr Placement Partial(ReduceOp op = ReduceOp::kSum) {
  return Placement(Placement::Kind::kPartial, op, 0);
}

std::ostream& operator<<(std::ostream& out, const Placement& placement);

}  // namespace shardmesh

#endif  // SHARDMESH_PLACEMENT_PLACEMENT_H_
