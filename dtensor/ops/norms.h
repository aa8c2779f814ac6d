// SPDX-License-Identifier: Apache-2.0
//
// Norms over channels, groups and trailing dims, and distances between rows. Names and conventions
// are PyTorch's.
//
//   RunningStatistics running{mean, variance};
//   DTensor y = BatchNorm(x, weight, bias, 1e-5, running);               // in training
//   DTensor z = BatchNormWith(x, mean, variance, weight, bias, 1e-5);    // afterwards
//
// Operands are [batch, channels, ..]. Statistics are those of the global tensor: where a dim that
// they reduce is sharded (the batch, in data-parallel training) they are all-reduced, and the
// tensor stays where it is. weight and bias have one element per channel; either may be missing.
// bf16 and f16 are computed with in f32, and the result is rounded once.
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, the operands, the value and what is
// expected, before any work, alike on all ranks.
#ifndef SHARDMESH_DTENSOR_OPS_NORMS_H_
#define SHARDMESH_DTENSOR_OPS_NORMS_H_

#include <cstdint>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

/// One mean and one variance per channel, of any floating dtype, which training moves towards those
/// of its batch: (1 - momentum) * running + momentum * batch, with the unbiased variance. Written
/// in place; both or none.
struct RunningStatistics {
  DTensor mean = {}, variance = {};
  double momentum = 0.1;
};

/// (x - mean) / sqrt(variance + eps) * weight + bias, with mean and biased variance of each channel
/// over the whole batch.
/// Shape:  x [n, c, ..], weight and bias [c] -> x's.
/// Errors: also unless each channel has two elements.
DTensor BatchNorm(const DTensor& x, const DTensor& weight = {}, const DTensor& bias = {},
                  double eps = 1e-5, const RunningStatistics& running = {});
/// The same with a mean and a variance that are given, of shape [c].
DTensor BatchNormWith(const DTensor& x, const DTensor& mean, const DTensor& variance,
                      const DTensor& weight = {}, const DTensor& bias = {}, double eps = 1e-5);
/// BatchNorm of each element of the batch by itself. Running statistics move towards the means of
/// theirs.
DTensor InstanceNorm(const DTensor& x, const DTensor& weight = {}, const DTensor& bias = {},
                     double eps = 1e-5, const RunningStatistics& running = {});
/// Over groups of neighbouring channels of each element of the batch. Sharded channels stay where
/// the number of shards divides the groups.
DTensor GroupNorm(const DTensor& x, int64_t groups, const DTensor& weight = {},
                  const DTensor& bias = {}, double eps = 1e-5);
/// x / (k + alpha * mean(x^2))^beta, with the mean over `size` neighbouring channels, of which
/// those that do not exist are 0. Shape: x [n, c, ..] -> x's.
DTensor LocalResponseNorm(const DTensor& x, int64_t size, double alpha = 1e-4, double beta = 0.75,
                          double k = 1);

/// LayerNorm and RmsNorm of dtensor/ops.h over the last `dims` dims at once, which are gathered
/// where they are sharded. weight and bias have the shape of these dims; either may be missing.
DTensor LayerNormOver(const DTensor& x, int dims, const DTensor& weight = {},
                      const DTensor& bias = {}, double eps = 1e-5);
DTensor RmsNormOver(const DTensor& x, int dims, const DTensor& weight, double eps);

/// VectorNorm of the difference of each row of a and each row of b.
/// Shape: a [.., p, m], b [.., r, m] -> [.., p, r], where leading dims broadcast.
DTensor CDist(const DTensor& a, const DTensor& b, double order = 2);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_NORMS_H_
