// SPDX-License-Identifier: Apache-2.0
//
// Parameter groups: which parameters of an optimizer have options of their own.
//
//   optim::AdamW optimizer(
//       model.Parameters(), {.lr = 3e-3, .weight_decay = 0.1},
//       {{.parameters = optim::IsNormOrBias, .change = [](auto& o) { o.weight_decay = 0; }},
//        {.parameters = {"embed.*", "head.*"}, .change = [](auto& o) { o.lr *= 0.5; }}});
#ifndef SHARDMESH_OPTIM_PARAMETER_GROUP_H_
#define SHARDMESH_OPTIM_PARAMETER_GROUP_H_

#include <concepts>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardmesh/nn/parameter.h"

namespace shardmesh::optim {

/// Whether a parameter is, as far as its shape tells, the scale of a norm or a bias: it has fewer
/// than two dims. Weight decay is commonly left out for these.
inline bool IsNormOrBias(const nn::Parameter& parameter) { return parameter.shape().size() < 2; }

/// Which parameters a group has: those whose name matches one of several patterns, or those for
/// which a predicate is true. Value type.
class ParameterSelector {
 public:
  using Predicate = std::function<bool(const nn::Parameter&)>;

  // Implicit, as a pattern, a list of patterns or a predicate is what is meant.
  /// Patterns of Parameter::name(), as MatchesNamePattern (base/name_pattern.h): '*' stops at dots.
  ParameterSelector(const char* pattern) : patterns_{pattern} {}  // NOLINT
  ParameterSelector(std::initializer_list<const char*> patterns)  // NOLINT
      : patterns_(patterns.begin(), patterns.end()) {}
  ParameterSelector(std::vector<std::string> patterns)  // NOLINT
      : patterns_(std::move(patterns)) {}
  template <std::predicate<const nn::Parameter&> F>
  ParameterSelector(F predicate) : predicate_(std::move(predicate)) {}  // NOLINT

  const std::vector<std::string>& patterns() const { return patterns_; }
  bool Selects(const nn::Parameter& parameter) const;

 private:
  std::vector<std::string> patterns_;
  Predicate predicate_;
};

/// Parameters with options of their own. Of several groups the first that selects a parameter has
/// it; parameters in no group have the optimizer's options.
template <typename Options>
struct ParameterGroup {
  ParameterSelector parameters;
  /// Makes the group's options of the optimizer's; null leaves them.
  std::function<void(Options&)> change;
};

namespace internal {

/// The group of each parameter: 0 for those that no selector matches, 1 for the first selector.
/// Errors: throws Error(kInvalidArgument) naming `optimizer` and a pattern that matches no
/// parameter.
std::vector<int> AssignGroups(std::string_view optimizer,
                              const std::vector<nn::Parameter>& parameters,
                              const std::vector<ParameterSelector>& selectors);

}  // namespace internal
}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_PARAMETER_GROUP_H_
