// SPDX-License-Identifier: Apache-2.0
//
// Names, sizes and values as the tool prints them. What comes from a file is escaped, so that it
// stays on its line and gives no orders to a terminal.
#ifndef SHARDMESH_TOOLS_CHECKPOINT_PRINTED_H_
#define SHARDMESH_TOOLS_CHECKPOINT_PRINTED_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "shardmesh/state/state_dict.h"

namespace shardmesh::checkpoint::tool {

/// As it is, if it is made of visible ASCII; else as Quoted does.
std::string PrintedName(std::string_view name);

/// "364 B", "1.2 KiB", "80.5 GiB".
std::string PrintedBytes(int64_t bytes);

/// "1 tensor", "13 tensors".
std::string PrintedCount(int64_t count, std::string_view noun);

/// 20, 0.1, true, 'text', [1, 2, ...]. Long texts and lists are cut.
std::string PrintedValue(const StateValue& value);

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_PRINTED_H_
