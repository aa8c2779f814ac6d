// SPDX-License-Identifier: Apache-2.0
//
// Who holds what of a tensor, for people.
//
//   std::cout << DescribeSharding(x.layout());
//
//   [6,5] [S(0), S(1)] @ [dp=2, tp=2]
//          tp 0              tp 1
//   dp 0   [0:3, 0:3]        [0:3, 3:5]
//   dp 1   [3:6, 0:3]        [3:6, 3:5]
//
// Local: no rank need call, or all may.
#ifndef SHARDMESH_DTENSOR_DESCRIBE_SHARDING_H_
#define SHARDMESH_DTENSOR_DESCRIBE_SHARDING_H_

#include <string>

#include "shardmesh/placement/layout.h"

namespace shardmesh {

/// The layout, then the ranges [begin:end) of global indices that each rank holds: a table for a
/// mesh of one or two axes, else a line per rank, of which at most 64 are shown. Where the layout
/// is Partial, a range is followed by the reduction that ranks have summands (or else) of:
/// "[0:3, 0:5] of sum".
std::string DescribeSharding(const Layout& layout);

/// The same as an SVG image: the tensor as a rectangle (rows down, columns across; a vector is one
/// row), cut into what ranks hold, each with the ranks that hold it. For tensors of 1 or 2 dims on
/// meshes of 1 or 2 axes with at most 64 ranks.
/// Errors: throws Error(kInvalidArgument) naming the layout if it is another, or has no elements.
std::string ShardingAsSvg(const Layout& layout);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_DESCRIBE_SHARDING_H_
