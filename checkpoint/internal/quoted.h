// SPDX-License-Identifier: Apache-2.0
//
// Text from a file, made fit for an error message: whatever bytes it holds, the message stays one
// readable line.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_QUOTED_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_QUOTED_H_

#include <string>
#include <string_view>

namespace shardmesh::internal {

/// 'text' in quotes, control characters and invalid UTF-8 escaped, the middle of a long one left
/// out.
std::string Quoted(std::string_view text);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_QUOTED_H_
