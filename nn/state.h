// SPDX-License-Identifier: Apache-2.0
//
// The state of a module as a StateDict.
#ifndef SHARDMESH_NN_STATE_H_
#define SHARDMESH_NN_STATE_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "shardmesh/nn/module.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::nn {

/// The parameters and persistent buffers of `module` and its descendants, and what they add by
/// AddOwnState, under names relative to `module`; a tied parameter once, under all its names.
/// Values are this rank's shards, also under FullyShard. A parameter that is placed and has no
/// values is an UnsetTensor, which loading creates in its layout. Begins with Module::PlaceBuffers.
/// Local. The result refers to the module, which must outlive it.
/// Errors: throws Error(kFailedPrecondition) naming the first parameter without a mesh.
StateDict State(Module& module);

/// All names of each parameter and buffer of `module` and its descendants, by Parameter::id(). A
/// tied one, or one of a module that has two parents, has several.
std::unordered_map<const void*, std::vector<std::string>> AllNames(const Module& module);

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_STATE_H_
