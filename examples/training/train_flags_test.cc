// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/train_flags.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"

namespace shardmesh::examples {
namespace {

TEST(ParseTrainFlags, ReadsEveryFlag) {
  const absl::StatusOr<TrainFlags> flags = ParseTrainFlags(
      {"--mesh=tp=3,dp=2", "--steps=7", "--batch", "5", "-seq=11", "--hidden=48", "--mlp=20",
       "--layers=3", "--heads=6", "--kv_heads=2", "--lr=1e-2", "--warmup=4", "--precision=f64",
       "--sequence_parallel", "--data=a=b.txt", "--seed=18446744073709551615",
       "--metrics=", "--sample=0", "--temperature=.5"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const TrainOptions& options = flags->options;
  EXPECT_EQ(options.mesh, (MeshShape{{"tp", 3}, {"dp", 2}}));
  EXPECT_EQ(options.steps, 7);
  EXPECT_EQ(options.batch, 5);
  EXPECT_EQ(options.sequence, 11);
  EXPECT_EQ(options.model.hidden_size, 48);
  EXPECT_EQ(options.model.intermediate_size, 20);
  EXPECT_EQ(options.model.num_hidden_layers, 3);
  EXPECT_EQ(options.model.num_attention_heads, 6);
  EXPECT_EQ(options.model.num_key_value_heads, 2);
  EXPECT_EQ(options.optimizer.lr, 1e-2);
  EXPECT_EQ(options.warmup_steps, 4);
  EXPECT_EQ(options.precision, Precision::kF64);
  EXPECT_TRUE(options.sequence_parallel);
  EXPECT_EQ(flags->data, "a=b.txt");
  EXPECT_EQ(options.seed, 18446744073709551615u);
  EXPECT_EQ(flags->metrics, "");
  EXPECT_EQ(options.sample_bytes, 0);
  EXPECT_EQ(options.temperature, 0.5);
  EXPECT_FALSE(flags->help);
}

TEST(ParseTrainFlags, TakesTheLastOfEqualFlagsAndDefaultsForTheRest) {
  const TrainFlags flags =
      *ParseTrainFlags({"--steps=7", "--sequence_parallel", "--steps=8", "--nosequence_parallel"});
  EXPECT_EQ(flags.options.steps, 8);
  EXPECT_FALSE(flags.options.sequence_parallel);
  EXPECT_EQ(flags.options.batch, TrainOptions().batch);
  EXPECT_TRUE(ParseTrainFlags({"--help"})->help);
  EXPECT_TRUE(ParseTrainFlags({}).ok());
}

TEST(ParseTrainFlags, SaysWhatWasGivenAndWhatWasExpected) {
  const struct {
    std::vector<std::string_view> arguments;
    const char* message;
  } kCases[] = {
      {{"more"}, "unexpected argument 'more'"},
      {{""}, "unexpected argument ''"},
      {{"-"}, "unexpected argument '-'"},
      {{"--"}, "unexpected argument '--'"},
      {{"--stepz=3"}, "unknown flag '--stepz=3'; --help shows all"},
      {{"--=3"}, "unknown flag '--=3'; --help shows all"},
      {{"--nosteps"}, "unknown flag '--nosteps'; --help shows all"},
      {{"--nosequence_parallel=true"},
       "unknown flag '--nosequence_parallel=true'; --help shows all"},
      {{"--steps"}, "--steps has no value"},
      {{"--steps="}, "--steps is ''; expected an integer below 2^63"},
      {{"--steps=ten"}, "--steps is 'ten'; expected an integer below 2^63"},
      {{"--steps=9223372036854775808"},
       "--steps is '9223372036854775808'; expected an integer below 2^63"},
      {{"--steps=1e3"}, "--steps is '1e3'; expected an integer below 2^63"},
      {{"--seed=-1"}, "--seed is '-1'; expected an integer from 0 to 2^64 - 1"},
      {{"--lr=nan"}, "--lr is 'nan'; expected a finite number"},
      {{"--lr=-inf"}, "--lr is '-inf'; expected a finite number"},
      {{"--lr=1e999"}, "--lr is '1e999'; expected a finite number"},
      {{"--lr", "--steps=3"}, "--lr is '--steps=3'; expected a finite number"},
      {{"--precision=fp8"}, "--precision is 'fp8'; expected f32, f64 or bf16"},
      {{"--sequence_parallel=2"}, "--sequence_parallel is '2'; expected true or false"},
      {{"--mesh=tp=none"},
       "--mesh is 'tp=none'; size 'none' of axis tp is not a number from 1 to 1024; expected "
       "NAME=SIZE,... with the axes dp_replicate, dp and tp"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = ParseTrainFlags(c.arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_EQ(status.message(), c.message);
  }
}

TEST(ParseTrainFlags, QuotesAndCutsWhatItWasGiven) {
  const std::string odd = "\x1b[2J\n" + std::string(100'000, 'x');
  for (const std::string& argument : {odd, "--" + odd, "--steps=" + odd, "--mesh=dp=" + odd}) {
    const absl::Status status = ParseTrainFlags({argument}).status();
    EXPECT_TRUE(absl::StrContains(status.message(), R"(\x1b[2J\nxxx)")) << status;
    EXPECT_LT(status.message().size(), 1000u);
  }
}

TEST(TrainFlagsHelp, HasOneLinePerFlagWithItsDefault) {
  const std::string help = TrainFlagsHelp();
  EXPECT_TRUE(absl::StrContains(help, "  --mesh=dp=2,tp=2 ")) << help;
  EXPECT_TRUE(absl::StrContains(help, "\n  --lr=0.003 ")) << help;
  EXPECT_TRUE(absl::StrContains(help, "\n  --sequence_parallel ")) << help;
  EXPECT_TRUE(absl::StrContains(help, "\n  --metrics= ")) << help;
}

}  // namespace
}  // namespace shardmesh::examples
