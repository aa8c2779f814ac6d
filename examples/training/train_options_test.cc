// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/train_options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/match.h"

namespace shardmesh::examples {
namespace {

TEST(TrainOptions, DefaultsAreTheWorkThatRunsAreComparedOn) {
  const TrainOptions options;
  EXPECT_TRUE(options.Validate().ok());
  EXPECT_EQ(options.model.HeadDim(), 32);
  EXPECT_EQ(options.model.rms_norm_eps, 1e-6);
  EXPECT_EQ(options.model.initializer_range, 0.02);
  EXPECT_EQ(options.model.rope.theta, 1e4);
  EXPECT_FALSE(options.model.tie_word_embeddings);
  EXPECT_EQ(options.optimizer.eps, 1e-8);
}

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(TrainOptions, ValidateNamesTheOptionAndItsValue) {
  const struct {
    std::function<void(TrainOptions&)> change;
    const char* message;
  } kCases[] = {
      {[](TrainOptions& o) { o.steps = 0; }, "steps is 0; expected at least 1"},
      {[](TrainOptions& o) { o.batch = -3; }, "batch is -3; expected 1 to 2147483647"},
      {[](TrainOptions& o) { o.sequence = 0; }, "seq is 0; expected 1 to 2147483647"},
      {[](TrainOptions& o) { o.warmup_steps = -1; }, "warmup is -1; expected at least 0"},
      {[](TrainOptions& o) { o.sample_bytes = -1; }, "sample is -1; expected 0 to 1073741824"},
      {[](TrainOptions& o) { o.optimizer.lr = -1; }, "lr is -1; expected 0 to 1e+06"},
      {[](TrainOptions& o) { o.optimizer.lr = std::nan(""); }, "lr is nan; expected 0 to 1e+06"},
      {[](TrainOptions& o) { o.temperature = std::numeric_limits<double>::infinity(); },
       "temperature is inf; expected 0 or more"},
      {[](TrainOptions& o) { o.model.vocab_size = 255; },
       "vocab_size is 255; expected 256 to 2147483647"},
      {[](TrainOptions& o) { o.model.num_key_value_heads = 3; },
       "heads is 4; expected a multiple of kv_heads, which is 3"},
      {[](TrainOptions& o) { o.model.num_key_value_heads = 0; }, "kv_heads is 0; expected 1 to"},
      {[](TrainOptions& o) { o.model.num_attention_heads = 0; }, "heads is 0; expected 1 to"},
      {[](TrainOptions& o) { o.model.hidden_size = 132; },
       "hidden is 132; expected a multiple of 2 x heads, which is 8"},
      {[](TrainOptions& o) { o.model.num_hidden_layers = 10'001; }, "layers is 10001; expected 1"},
      {[](TrainOptions& o) { o.model.hidden_size = kMax / 2 / 8 * 8; },
       "hidden is 4611686018427387"},
      {[](TrainOptions& o) { o.model.intermediate_size = kMax; }, "mlp is 9223372036854775807"},
      // Sums and products of these overflowed.
      {[](TrainOptions& o) { o.sequence = kMax; }, "seq is 9223372036854775807; expected 1 to"},
      {[](TrainOptions& o) { o.batch = kMax; }, "batch is 9223372036854775807; expected 1 to"},
      {[](TrainOptions& o) { o.batch = o.sequence = kMax >> 32; },
       "batch 2147483647 x seq 2147483647 x width 384 is too large"},
      {[](TrainOptions& o) { o.model.hidden_size = o.model.vocab_size = 2147483640; },
       "the model has more than 2^50 elements"},
      // The schedule overflowed, and its message named the rate that it had computed.
      {[](TrainOptions& o) { o.optimizer.lr = 1e308; }, "lr is 1e+308; expected 0 to 1e+06"},
  };
  for (const auto& c : kCases) {
    TrainOptions options;
    c.change(options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_TRUE(absl::StrContains(status.message(), c.message)) << status;
  }
}

TEST(Precision, ReadsWhatItWrites) {
  for (const Precision precision : {Precision::kF32, Precision::kF64, Precision::kBF16}) {
    EXPECT_EQ(ParsePrecision(UnparsePrecision(precision)).value(), precision);
  }
  EXPECT_EQ(ParsePrecision("fp16").status().message(), "expected f32, f64 or bf16");
}

}  // namespace
}  // namespace shardmesh::examples
