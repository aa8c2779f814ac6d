// SPDX-License-Identifier: Apache-2.0
//
// The program, without its main.
#ifndef SHARDMESH_TOOLS_CHECKPOINT_TOOL_H_
#define SHARDMESH_TOOLS_CHECKPOINT_TOOL_H_

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "shardmesh/tools/checkpoint/console.h"

namespace shardmesh::checkpoint::tool {

enum ExitCode {
  kExitOk = 0,
  kExitFound = 1,  ///< verify has found a fault, diff a difference.
  kExitError = 2,  ///< The command could not be carried out; a line on stderr says why.
};

/// Runs "inspect DIR" and so on. Never throws. `user_path` maps each path that the user gave, for a
/// program that was started elsewhere than where the user typed.
ExitCode RunTool(std::span<const std::string_view> arguments, Console& console,
                 const std::function<std::string(std::string)>& user_path = nullptr);

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_TOOL_H_
