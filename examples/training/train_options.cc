// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/train_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::examples {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kMaxSampleBytes = int64_t{1} << 30;
constexpr int64_t kMaxElements = int64_t{1} << 50;
/// Far beyond what trains. The schedule multiplies by numbers of steps: without a limit its product
/// could overflow although the rate that was given is finite.
constexpr double kMaxLr = 1e6;

/// The shortest text that reads as `value`.
std::string Shortest(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

absl::Status InRange(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  const std::string expected =
      most == kMaxInt ? absl::StrCat("at least ", least) : absl::StrCat(least, " to ", most);
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; expected ", expected));
}

absl::Status MultipleOf(const char* name, int64_t value, const char* other, int64_t divisor) {
  if (value % divisor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; expected a multiple of ",
                                                 other, ", which is ", divisor));
}

/// With the names of the flags; LlamaConfig::Validate checks more, with its own names.
absl::Status ValidateModel(const models::LlamaConfig& model) {
  SHARDMESH_RETURN_IF_ERROR(InRange("hidden", model.hidden_size, 1, kMaxExtent));
  SHARDMESH_RETURN_IF_ERROR(InRange("mlp", model.intermediate_size, 1, kMaxExtent));
  SHARDMESH_RETURN_IF_ERROR(InRange("layers", model.num_hidden_layers, 1, kMaxLayers));
  SHARDMESH_RETURN_IF_ERROR(InRange("heads", model.num_attention_heads, 1, kMaxExtent));
  SHARDMESH_RETURN_IF_ERROR(InRange("kv_heads", model.KeyValueHeads(), 1, kMaxExtent));
  SHARDMESH_RETURN_IF_ERROR(
      MultipleOf("heads", model.num_attention_heads, "kv_heads", model.KeyValueHeads()));
  if (!model.head_dim) {
    SHARDMESH_RETURN_IF_ERROR(
        MultipleOf("hidden", model.hidden_size, "2 x heads", 2 * model.num_attention_heads));
  }
  SHARDMESH_RETURN_IF_ERROR(model.Validate());
  return InRange("vocab_size", model.vocab_size, 256, kMaxExtent);
}

/// The largest activation of a step: the logits, or what is between two layers of the model. All
/// factors are below 2^31.
absl::Status ValidateActivations(const TrainOptions& options) {
  const models::LlamaConfig& model = options.model;
  const int64_t width = std::max({model.vocab_size, model.hidden_size, model.intermediate_size,
                                  model.num_attention_heads * model.HeadDim()});
  const auto elements = static_cast<unsigned __int128>(options.batch * options.sequence) *
                        static_cast<uint64_t>(width);
  if (elements <= static_cast<uint64_t>(kMaxElements)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("batch ", options.batch, " x seq ",
                                                 options.sequence, " x width ", width,
                                                 " is too large; expected at most 2^50 elements"));
}

}  // namespace

absl::StatusOr<Precision> ParsePrecision(std::string_view text) {
  for (const Precision precision : {Precision::kF32, Precision::kF64, Precision::kBF16}) {
    if (UnparsePrecision(precision) == text) return precision;
  }
  return absl::InvalidArgumentError("expected f32, f64 or bf16");
}

std::string UnparsePrecision(Precision precision) {
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
  SHARDMESH_RETURN_IF_ERROR(ValidateModel(model));
  SHARDMESH_RETURN_IF_ERROR(InRange("steps", steps, 1, kMaxInt));
  SHARDMESH_RETURN_IF_ERROR(InRange("batch", batch, 1, kMaxExtent));
  SHARDMESH_RETURN_IF_ERROR(InRange("seq", sequence, 1, kMaxExtent));
  SHARDMESH_RETURN_IF_ERROR(InRange("warmup", warmup_steps, 0, kMaxInt));
  SHARDMESH_RETURN_IF_ERROR(InRange("sample", sample_bytes, 0, kMaxSampleBytes));
  if (!(optimizer.lr >= 0 && optimizer.lr <= kMaxLr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lr is ", Shortest(optimizer.lr), "; expected 0 to ", Shortest(kMaxLr)));
  }
  if (!(temperature >= 0) || std::isinf(temperature)) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature is ", Shortest(temperature), "; expected 0 or more"));
  }
  return ValidateActivations(*this);
}

}  // namespace shardmesh::examples
