// SPDX-License-Identifier: Apache-2.0
//
// Patterns of dotted names, as plans and parameter groups take them.
//
//   MatchesNamePattern("layers.*.mlp", "layers.11.mlp")          // true
//   MatchesNamePattern("layers.*", "layers.11.mlp")              // false: '*' stops at a dot
#ifndef SHARDMESH_BASE_NAME_PATTERN_H_
#define SHARDMESH_BASE_NAME_PATTERN_H_

#include <string_view>

namespace shardmesh {

/// Whether all of `name` matches: '*' stands for one or more characters other than '.', everything
/// else for itself; an empty pattern matches an empty name only.
bool MatchesNamePattern(std::string_view pattern, std::string_view name);

}  // namespace shardmesh

#endif  // SHARDMESH_BASE_NAME_PATTERN_H_
