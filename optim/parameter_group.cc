// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/parameter_group.h"

#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/base/name_pattern.h"
#include "shardmesh/base/quoted.h"

namespace shardmesh::optim {

bool ParameterSelector::Selects(const nn::Parameter& parameter) const {
  if (predicate_) return predicate_(parameter);
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& pattern) {
    return MatchesNamePattern(pattern, parameter.name());
  });
}

namespace internal {
namespace {

void CheckMatches(std::string_view optimizer, size_t group, const ParameterSelector& selector,
                  const std::vector<nn::Parameter>& parameters) {
  for (const std::string& pattern : selector.patterns()) {
    const bool matches =
        std::any_of(parameters.begin(), parameters.end(), [&](const nn::Parameter& parameter) {
          return MatchesNamePattern(pattern, parameter.name());
        });
    if (matches) continue;
    ThrowInvalid(std::string(optimizer), ": pattern ", Quoted(pattern, /*max_chars=*/200),
                 " of parameter group ", group, " matches no parameter");
  }
}

}  // namespace

std::vector<int> AssignGroups(std::string_view optimizer,
                              const std::vector<nn::Parameter>& parameters,
                              const std::vector<ParameterSelector>& selectors) {
  for (size_t i = 0; i < selectors.size(); ++i) {
    CheckMatches(optimizer, i + 1, selectors[i], parameters);
  }
  std::vector<int> groups;
  for (const nn::Parameter& parameter : parameters) {
    const auto first = std::find_if(
        selectors.begin(), selectors.end(),
        [&](const ParameterSelector& selector) { return selector.Selects(parameter); });
    groups.push_back(first == selectors.end() ? 0
                                              : 1 + static_cast<int>(first - selectors.begin()));
  }
  return groups;
}

}  // namespace internal
}  // namespace shardmesh::optim
