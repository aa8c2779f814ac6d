// SPDX-License-Identifier: Apache-2.0
//
// Which tensors and values a command is about.
//
//   NameFilter filter("layers.*.mlp,norm");
//   filter.Matches("layers.3.mlp.weight");   // true: a pattern stands for all below it
#ifndef SHARDMESH_TOOLS_CHECKPOINT_NAME_FILTER_H_
#define SHARDMESH_TOOLS_CHECKPOINT_NAME_FILTER_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardmesh::checkpoint::tool {

class NameFilter {
 public:
  /// Patterns (MatchesNamePattern) with commas between them; none matches every name.
  explicit NameFilter(std::string_view patterns);

  /// Whether a pattern matches the name, or the name up to one of its dots.
  bool Matches(std::string_view name) const;
  /// Whether it matches `name` or one of the others.
  bool MatchesAny(std::string_view name, std::span<const std::string> others) const;

 private:
  std::vector<std::string> patterns_;
};

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_NAME_FILTER_H_
