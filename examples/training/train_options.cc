// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/train_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::examples {
namespace {

absl::Status AtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; expected at least ", least));
}

absl::Status FiniteAndNotNegative(const char* name, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; expected 0 or more"));
}

}  // namespace

bool AbslParseFlag(absl::string_view text, Precision* precision, std::string* error) {
  for (const Precision candidate : {Precision::kF32, Precision::kF64, Precision::kBF16}) {
    if (AbslUnparseFlag(candidate) != text) continue;
    *precision = candidate;
    return true;
  }
  *error = "expected f32, f64 or bf16";
  return false;
}

std::string AbslUnparseFlag(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return "f32";
    case Precision::kF64:
      return "f64";
    case Precision::kBF16:
      return "bf16";
  }
  return "?";
}

absl::Status TrainOptions::Validate() const {
  SHARDMESH_RETURN_IF_ERROR(model.Validate());
  SHARDMESH_RETURN_IF_ERROR(AtLeast("vocab_size", model.vocab_size, 256));
  SHARDMESH_RETURN_IF_ERROR(AtLeast("steps", steps, 1));
  SHARDMESH_RETURN_IF_ERROR(AtLeast("batch", batch, 1));
  SHARDMESH_RETURN_IF_ERROR(AtLeast("seq", sequence, 1));
  SHARDMESH_RETURN_IF_ERROR(AtLeast("warmup", warmup_steps, 0));
  SHARDMESH_RETURN_IF_ERROR(AtLeast("sample", sample_bytes, 0));
  SHARDMESH_RETURN_IF_ERROR(FiniteAndNotNegative("lr", optimizer.lr));
  return FiniteAndNotNegative("temperature", temperature);
}

}  // namespace shardmesh::examples
