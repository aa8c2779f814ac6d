// SPDX-License-Identifier: Apache-2.0
//
// Samples text from a model byte by byte, with the weights sharded as in training.
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
  int64_t sequence = 1;    ///< Context length: the most bytes that the model sees.
  double temperature = 1;  ///< Divides the logits; 0 takes the likeliest.
  uint64_t seed = 0;
};

/// The text that `model` (ids [1, sequence] -> logits) writes after `prompt`, which must not be
/// empty. All ranks get the same text, on any mesh. `keep_going` is called before each byte and
/// must return the same on all ranks; false ends the text. Collective over the mesh.
std::string Sample(nn::Module& model, const DeviceMesh& mesh, std::string_view prompt,
                   const SampleOptions& options, const std::function<bool()>& keep_going);

/// Samples an index with a uniform u in [0, 1): the first i with p_0 + .. + p_i > u, where
/// p = softmax(logits / temperature). Temperature 0: the first of the largest logits.
int64_t PickIndex(std::span<const double> logits, double temperature, double u);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_SAMPLER_H_
