// SPDX-License-Identifier: Apache-2.0
//
// Ranges that hyperparameters must be in, so that no size computed from them overflows.
//
//   SHARDMESH_RETURN_IF_ERROR(CheckExtent("vocab_size", vocab_size));
#ifndef SHARDMESH_MODELS_CONFIG_CONFIG_CHECKS_H_
#define SHARDMESH_MODELS_CONFIG_CONFIG_CHECKS_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"

namespace shardmesh::models {

inline constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxLayers = 10000;

/// Sums of products of a few extents and a number of layers.
using ElementCount = unsigned __int128;

/// All return OkStatus or kInvalidArgument: "name is value, expected ...".
absl::Status CheckExtent(const char* name, int64_t value, int64_t limit = kMaxExtent);
/// Above 0 and finite.
absl::Status CheckPositive(const char* name, double value);
/// 0 or above and finite.
absl::Status CheckNotNegative(const char* name, double value);
absl::Status CheckProbability(const char* name, double value);

/// Whether a model has at most 2^50 elements: then bytes and strides fit an int64_t.
bool IsCountable(ElementCount elements);

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_CONFIG_CONFIG_CHECKS_H_
