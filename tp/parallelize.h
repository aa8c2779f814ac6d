// SPDX-License-Identifier: Apache-2.0
//
// Tensor parallelism by name patterns: a plan maps modules to styles; styles set the layouts of
// parameters and of activations at the module's border; all communication follows from the layouts.
//
//   tp::Parallelize(model, mesh, "tp", {
//       {"model.layers.*.self_attn", tp::PrepareInput(Replicate())},
//       {"model.layers.*.self_attn.q_proj", tp::Colwise()},
//       {"model.layers.*.self_attn.o_proj", tp::Rowwise()},
//   });
#ifndef SHARDMESH_TP_PARALLELIZE_H_
#define SHARDMESH_TP_PARALLELIZE_H_

#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/tp/style.h"

namespace shardmesh::tp {

struct PlanEntry {
  /// Of module names, counted from the module that is parallelised. '*' matches one or more
  /// characters other than '.'; "" is that module itself. Several entries may match one module, as
  /// long as no two of them place the same parameter differently; their hooks run in plan order.
  std::string pattern;
  StylePtr style;
};
using Plan = std::vector<PlanEntry>;

/// Applies the plan: parameters not named in it are replicated along `axis`; what is set for other
/// axes of the mesh stays. Before FullyShard and before the first forward.
/// Local (collective only if parameters have values already).
/// Errors: throws Error(kInvalidArgument) before anything is changed, naming the pattern that
/// matches nothing, the module that does not fit its style, heads that the axis does not divide
/// (module, number of heads, axis size), or a parameter that lives on another mesh or would be
/// placed in two ways.
void Parallelize(nn::Module& module, const DeviceMesh& mesh, std::string_view axis,
                 const Plan& plan);

/// Whether `name` matches `pattern` as a PlanEntry says.
bool MatchesPattern(std::string_view pattern, std::string_view name);

}  // namespace shardmesh::tp

#endif  // SHARDMESH_TP_PARALLELIZE_H_
