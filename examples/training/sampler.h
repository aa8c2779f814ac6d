// SPDX-License-Identifier: Apache-2.0
//
// Lets a model write: byte after byte, with the weights sharded as they were trained.
#ifndef SHARDMESH_EXAMPLES_TRAINING_SAMPLER_H_
#define SHARDMESH_EXAMPLES_TRAINING_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::examples {

struct SampleOptions {
  int64_t bytes = 0;
  int64_t sequence = 1;    ///< The model sees at most so many of the bytes before the next.
  double temperature = 1;  ///< Divides the logits; 0 takes the likeliest.
  uint64_t seed = 0;
};

/// What `model` (ids [1, sequence] -> logits) writes after `prompt`, which must not be empty. Every
/// rank computes with the same bytes and gets the same text, on any mesh. Ends early when
/// `keep_going`, asked before each byte, says so: on all ranks alike. Collective over the mesh.
std::string Sample(nn::Module& model, const DeviceMesh& mesh, std::string_view prompt,
                   const SampleOptions& options, const std::function<bool()>& keep_going);

/// The index that a uniform number u in [0, 1) picks: the first i with sum of p_0..p_i > u, where
/// p = softmax(logits / temperature). Temperature 0: the first of the largest.
int64_t PickIndex(std::span<const double> logits, double temperature, double u);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_SAMPLER_H_
