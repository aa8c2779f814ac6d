// SPDX-License-Identifier: Apache-2.0
//
// Clipping of the global gradient norm.
//
//   Backward(loss);
//   double norm = optim::ClipGradNorm(model.Parameters(), /*max_norm=*/1.0);
//   optimizer.Step();
#ifndef SHARDMESH_OPTIM_CLIP_H_
#define SHARDMESH_OPTIM_CLIP_H_

#include <vector>

#include "shardmesh/nn/parameter.h"

namespace shardmesh::optim {

/// What happens if the norm is inf or nan: the same on every rank, as the norm is. A GradScaler
/// (grad_scaler.h) skips such a step itself: with one, kContinue and kSkipStep do the same, and
/// kThrow ends a program that the scaler would continue.
enum class NonFiniteNorm {
  kContinue,  ///< The gradients follow the formula (as PyTorch's do by default): 0 or nan.
  kThrow,     ///< Error(kOutOfRange), before a gradient is changed.
  kSkipStep,  ///< All gradients are cleared, so that the optimizer's Step() does nothing.
};

/// Scales all gradients in place by min(1, max_norm / (norm + eps)), where norm is the Euclidean
/// norm of all of them together, and returns the norm as it was before: the same on every rank.
/// 0 if there are no gradients.
///
/// The parameters may have any mix of layouts, on several meshes: each element of a global gradient
/// counts once, whatever its number of replicas. Sums of squares are f64; where squares of f64
/// gradients overflow or vanish, the gradients are divided by the largest first.
///
/// Collective: over each mesh one all-reduce of one f64, named clip_grad_norm, over those axes of
///             more than one rank along which some parameter with a gradient is sharded (none: no
///             communication); three if gradients are divided. All ranks pass the same parameters
///             in the same order.
/// Errors:     throws Error(kInvalidArgument) if max_norm or eps is negative or nan, or one of the
///             parameters is none; Error(kFailedPrecondition) naming a parameter whose gradient
///             FullyShard has not reduced; and Error(kOutOfRange) naming the norm, and a parameter
///             where this rank has one, if `on_non_finite` says so.
double ClipGradNorm(const std::vector<nn::Parameter>& parameters, double max_norm,
                    double eps = 1e-6, NonFiniteNorm on_non_finite = NonFiniteNorm::kContinue);

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_CLIP_H_
