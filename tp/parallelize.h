// SPDX-License-Identifier: Apache-2.0
//
// Tensor parallelism by name patterns. A plan maps modules to styles; a style sets the layouts of a
// module's parameters, inputs and outputs; all communication follows from the layouts.
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
  /// Matches names of modules relative to the one that is parallelised. '*' matches one or more
  /// characters other than '.'; "" is that module itself. Several entries may match one module if
  /// no two of them place the same parameter differently; their hooks run in plan order.
  std::string pattern;
  StylePtr style;
};
using Plan = std::vector<PlanEntry>;

/// Applies the plan. Parameters that it does not name stay as an earlier call has placed them along
/// `axis`, and are replicated if none has: a model may be parallelised by parts, in any order.
/// Placements along other axes of the mesh stay. Call it before FullyShard and before the first
/// forward.
/// Local, or collective if parameters already have values.
/// Errors: throws Error(kInvalidArgument) before anything is changed, naming the pattern that
/// matches nothing, the module that does not fit its style, heads that the axis does not divide
/// (module, number of heads, axis size), or a parameter that is on another mesh, would be placed in
/// two ways, or is sharded otherwise along `axis` already.
void Parallelize(nn::Module& module, const DeviceMesh& mesh, std::string_view axis,
                 const Plan& plan);

/// Whether `name` matches the pattern of a PlanEntry.
bool MatchesPattern(std::string_view pattern, std::string_view name);

}  // namespace shardmesh::tp

#endif  // SHARDMESH_TP_PARALLELIZE_H_
