// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/config/config_checks.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace shardmesh::models {
namespace {

absl::Status Expected(const char* name, double value, const char* expected) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", expected ", expected));
}

}  // namespace

absl::Status CheckExtent(const char* name, int64_t value, int64_t limit) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", expected 1 to ", limit));
}

absl::Status CheckPositive(const char* name, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return Expected(name, value, "a positive number");
}

absl::Status CheckNotNegative(const char* name, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return Expected(name, value, "0 or more");
}

absl::Status CheckProbability(const char* name, double value) {
  if (value >= 0 && value <= 1) return absl::OkStatus();
  return Expected(name, value, "0 to 1");
}

bool IsCountable(ElementCount elements) { return elements <= ElementCount{1} << 50; }

}  // namespace shardmesh::models
