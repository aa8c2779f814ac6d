// SPDX-License-Identifier: Apache-2.0
//
// Cosines and sines of rotary position embedding, computed on first use and cached.
//
//   angle[position, i] = position * f_i,   f_i = theta^(-2i / head_dim),   i in [0, head_dim / 2)
//
// Llama-3 scaling: with wavelength w_i = 2 pi / f_i and
//   s_i = clamp((original_max / w_i - low) / (high - low), 0, 1),
// f_i becomes (1 - s_i) f_i / factor + s_i f_i.
#ifndef SHARDMESH_MODELS_LLAMA_ROTARY_TABLES_H_
#define SHARDMESH_MODELS_LLAMA_ROTARY_TABLES_H_

#include <cstdint>
#include <vector>

#include "shardmesh/models/llama/llama_config.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::models {

/// Belongs to one rank; the layers of a model share one.
class RotaryTables {
 public:
  RotaryTables(int64_t head_dim, const RopeConfig& rope);

  struct CosSin {
    Tensor cos, sin;  ///< [length, head_dim / 2]
  };
  /// For positions 0 .. length - 1, in f64 for f64 and in f32 for any other `compute` dtype.
  /// Computed in double. The results are views of cached tables; a longer request at least doubles
  /// them.
  CosSin Get(ExecutionContext& context, int64_t length, DType compute);

  /// f_i.
  const std::vector<double>& frequencies() const { return frequencies_; }

 private:
  std::vector<double> frequencies_;
  CosSin f32_;
  CosSin f64_;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_LLAMA_ROTARY_TABLES_H_
