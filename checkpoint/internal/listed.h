// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_LISTED_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_LISTED_H_

#include <string>
#include <vector>

namespace shardmesh::internal {

/// For messages: ": a, b, c and 7 more", ordered. Few, and not more than a few hundred characters.
std::string Listed(std::vector<std::string> items);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_LISTED_H_
