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

TEST(TrainOptions, ValidateNamesTheOptionAndItsValue) {
  const struct {
    std::function<void(TrainOptions&)> change;
    const char* message;
  } kCases[] = {
      {[](TrainOptions& o) { o.steps = 0; }, "steps is 0; expected at least 1"},
      {[](TrainOptions& o) { o.batch = -3; }, "batch is -3; expected at least 1"},
      {[](TrainOptions& o) { o.sequence = 0; }, "seq is 0; expected at least 1"},
      {[](TrainOptions& o) { o.warmup_steps = -1; }, "warmup is -1; expected at least 0"},
      {[](TrainOptions& o) { o.sample_bytes = -1; }, "sample is -1; expected at least 0"},
      {[](TrainOptions& o) { o.optimizer.lr = -1; }, "lr is -1; expected 0 or more"},
      {[](TrainOptions& o) { o.optimizer.lr = std::nan(""); }, "lr is nan; expected 0 or more"},
      {[](TrainOptions& o) { o.temperature = std::numeric_limits<double>::infinity(); },
       "temperature is inf; expected 0 or more"},
      {[](TrainOptions& o) { o.model.vocab_size = 255; },
       "vocab_size is 255; expected at least 256"},
      {[](TrainOptions& o) { o.model.num_key_value_heads = 3; }, "num_key_value_heads"},
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
  std::string error;
  for (const Precision precision : {Precision::kF32, Precision::kF64, Precision::kBF16}) {
    Precision read;
    ASSERT_TRUE(AbslParseFlag(AbslUnparseFlag(precision), &read, &error)) << error;
    EXPECT_EQ(read, precision);
  }
  Precision read;
  EXPECT_FALSE(AbslParseFlag("fp16", &read, &error));
  EXPECT_EQ(error, "expected f32, f64 or bf16");
}

}  // namespace
}  // namespace shardmesh::examples
