// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/name_filter.h"

#include <algorithm>

#include "shardmesh/base/name_pattern.h"

namespace shardmesh::checkpoint::tool {

NameFilter::NameFilter(std::string_view patterns) {
  while (!patterns.empty()) {
    const size_t comma = patterns.find(',');
    if (comma != 0) patterns_.emplace_back(patterns.substr(0, comma));
    patterns = comma == patterns.npos ? std::string_view() : patterns.substr(comma + 1);
  }
}

bool NameFilter::Matches(std::string_view name) const {
  if (patterns_.empty()) return true;
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& pattern) {
    for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
      if (MatchesNamePattern(pattern, name.substr(0, dot))) return true;
    }
    return MatchesNamePattern(pattern, name);
  });
}

bool NameFilter::MatchesAny(std::string_view name, std::span<const std::string> others) const {
  return Matches(name) || std::any_of(others.begin(), others.end(),
                                      [this](const std::string& n) { return Matches(n); });
}

}  // namespace shardmesh::checkpoint::tool
