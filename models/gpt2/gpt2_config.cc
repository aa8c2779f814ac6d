// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/gpt2/gpt2_config.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::models {
namespace {

/// Products of two such extents, and four times one, fit an int64_t.
constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();

absl::Status CheckExtent(const char* name, int64_t value) {
  if (value >= 1 && value <= kMaxExtent) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", expected 1 to ", kMaxExtent));
}

absl::Status CheckProbability(const char* name, double value) {
  if (value >= 0 && value <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", expected 0 to 1"));
}

}  // namespace

absl::Status Gpt2Config::Validate() const {
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("vocab_size", vocab_size));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_positions", n_positions));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_embd", n_embd));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_layer", n_layer));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_head", n_head));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_inner", InnerSize()));
  if (n_embd % n_head != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("n_embd ", n_embd, " is not a multiple of n_head ", n_head));
  }
  if (!(layer_norm_epsilon > 0) || !std::isfinite(layer_norm_epsilon)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer_norm_epsilon is ", layer_norm_epsilon, ", expected a positive number"));
  }
  if (!(initializer_range >= 0) || !std::isfinite(initializer_range)) {
    return absl::InvalidArgumentError(
        absl::StrCat("initializer_range is ", initializer_range, ", expected 0 or more"));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckProbability("embd_pdrop", embd_pdrop));
  return CheckProbability("resid_pdrop", resid_pdrop);
}

}  // namespace shardmesh::models
