// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/internal/optimizer_state.h"

#include <string>
#include <unordered_set>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim::internal {
namespace {

Tensor EmptyLike(const DTensor& x) {
  return Tensor::Empty(x.mesh().context(), x.local().shape(), x.dtype(),
                       MemoryCategory::kOptimizer);
}

DTensor Copied(const DTensor& x) {
  Tensor local = EmptyLike(x);
  ops::Copy(x.mesh().context(), x.local(), local);
  return DTensor(x.mesh(), x.layout(), std::move(local));
}

}  // namespace

DTensor ZerosBeside(const nn::Parameter& parameter) {
  const DTensor& data = parameter.data();
  Tensor local = EmptyLike(data);
  ops::Fill(data.mesh().context(), local, 0);
  return DTensor(data.mesh(), data.layout(), std::move(local));
}

DTensor CopyOf(const nn::Parameter& parameter) { return Copied(parameter.data()); }

DTensor MovedTo(const DTensor& x, const Layout& layout) {
  NoGrad no_grad(x.mesh());
  return Copied(Redistribute(x, layout));
}

void CheckNamesAreUnique(std::string_view user, const std::vector<nn::Parameter>& parameters) {
  std::unordered_set<std::string> seen;
  for (const nn::Parameter& parameter : parameters) {
    if (parameter.name().empty()) {
      Throw(absl::StatusCode::kFailedPrecondition, std::string(user), ": parameter ",
            parameter.ToString(), " has no name to save its state by; register it in a module, or ",
            "call set_name");
    }
    if (seen.insert(parameter.name()).second) continue;
    Throw(absl::StatusCode::kFailedPrecondition, std::string(user), ": two parameters are called ",
          parameter.name(), ", one of them ", parameter.ToString(),
          ", and their states would be mixed up");
  }
}

DTensor TensorBeside(const nn::Parameter& parameter, std::string_view user, std::string_view name,
                     const StateValue& value) {
  const auto* given = std::get_if<DTensor>(&value);
  const bool fits = given != nullptr && *given && given->dtype() == parameter.dtype() &&
                    given->layout() == parameter.layout() && given->mesh() == parameter.mesh();
  if (fits) return *given;
  ThrowInvalid(std::string(user), ": ", std::string(name), " of parameter ", parameter.ToString(),
               " is given ", DescribeStateValue(value), ", expected a tensor like the parameter");
}

}  // namespace shardmesh::optim::internal
