// SPDX-License-Identifier: Apache-2.0
//
// Random tensors. Each element is a function of the key and its global index (docs/random.md), so
// the bits are the same on any mesh and in any layout; two tensors need two keys. None is
// differentiable.
//
//   const DTensor noise = NormalLike(x, {.seed = 1, .stream = step});
//
// Collective: all ranks of the mesh must call with the same arguments.
// Errors: throws Error(kInvalidArgument) naming the op, shapes, dtypes and values, alike on all
// ranks; as FromBoxes does for the placements.
#ifndef SHARDMESH_DTENSOR_OPS_RANDOM_H_
#define SHARDMESH_DTENSOR_OPS_RANDOM_H_

#include <cstdint>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/tensor/kernel_table.h"

namespace shardmesh {

/// In [low, high). `dtype` is a floating-point one.
DTensor Uniform(const DeviceMesh& mesh, const Dims& shape, DType dtype,
                const std::vector<Placement>& placements, RandomKey key, double low = 0,
                double high = 1);
DTensor Normal(const DeviceMesh& mesh, const Dims& shape, DType dtype,
               const std::vector<Placement>& placements, RandomKey key, double mean = 0,
               double stddev = 1);
/// Of the normal numbers those in [low, high], by the inverse of the distribution function.
/// Errors: also if less than 1e-9 of the normal numbers are.
DTensor TruncatedNormal(const DeviceMesh& mesh, const Dims& shape, DType dtype,
                        const std::vector<Placement>& placements, RandomKey key, double mean = 0,
                        double stddev = 1, double low = -2, double high = 2);
/// i64 in [low, high), which are less than 2^53 apart.
DTensor RandomIntegers(const DeviceMesh& mesh, const Dims& shape,
                       const std::vector<Placement>& placements, RandomKey key, int64_t low,
                       int64_t high);
/// 0, 1, .. n - 1 (i64) in random order.
DTensor RandomPermutation(const DeviceMesh& mesh, int64_t n,
                          const std::vector<Placement>& placements, RandomKey key);

/// Of x's shape, dtype and layout (Partial read as Replicate).
DTensor UniformLike(const DTensor& x, RandomKey key, double low = 0, double high = 1);
DTensor NormalLike(const DTensor& x, RandomKey key, double mean = 0, double stddev = 1);

/// 1 with the probability that x has there, else 0, in x's dtype.
/// Errors: also for an x that is not in [0, 1], wherever it lies.
DTensor Bernoulli(const DTensor& x, RandomKey key);
/// `count` indices (i64) of the last dim, each with a probability in proportion to x there; with
/// `replacement` independent of each other, else all different. The last dim is gathered if it is
/// sharded.
/// Shape:  x [.., n] -> [.., count].
/// Errors: also for x that is negative, not finite or without a sum, or has fewer than `count`
///         elements above 0 to choose from, wherever they lie.
DTensor Multinomial(const DTensor& x, int64_t count, bool replacement, RandomKey key);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_RANDOM_H_
