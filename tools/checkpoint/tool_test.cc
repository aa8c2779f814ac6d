// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/tool.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/tools/checkpoint/name_filter.h"
#include "shardmesh/tools/checkpoint/testing/sample_checkpoints.h"

namespace shardmesh::checkpoint::tool {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::InFolder;
using testing::SaveSample;
using testing::Tool;
using testing::ToolResult;

TEST(RunTool, HelpHasEachCommandFlagAndExitCode) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"help"}, {"diff", "--help"}}) {
    const ToolResult result = Tool(arguments);
    EXPECT_EQ(result.code, kExitOk);
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("\ninspect DIR: "), HasSubstr("\nverify DIR: "),
                      HasSubstr("\ndiff A B: "), HasSubstr("\nconvert FROM TO: "),
                      HasSubstr("--rtol=NUMBER"), HasSubstr("--noverify"), HasSubstr("--pieces "),
                      HasSubstr("Exit code: 0"), HasSubstr("1 verify"), HasSubstr("2 an error")));
  }
}

TEST(RunTool, RefusesWhatItDoesNotUnderstand) {
  const struct {
    std::vector<std::string> arguments;
    std::string problem;
  } rows[] = {
      {{}, "expected inspect, verify, diff or convert"},
      {{"inspct", "x"}, "not 'inspct'"},
      {{"inspect"}, "inspect takes DIR, not 0 paths"},
      {{"diff", "a"}, "diff takes A B, not 1 paths"},
      {{"inspect", "a", "b"}, "not 2 paths"},
      {{"inspect", "a", "--rtol=1"}, "unknown flag '--rtol=1'"},
      {{"inspect", "a", "--nonames"}, "unknown flag '--nonames'"},
      {{"diff", "a", "b", "--rtol"}, "--rtol has no value"},
      {{"diff", "a", "b", "--rtol=-1"}, "--rtol is '-1'; expected a finite number"},
      {{"diff", "a", "b", "--atol=nan"}, "--atol is 'nan'"},
      {{"convert", "a", "b", "--dtype=i32"}, "--dtype is 'i32'; expected f32, f64, bf16 or f16"},
      {{"convert", "a", "b", "--max_file_bytes=-1"}, "expected a count"},
      {{"inspect", "a", "--pieces=maybe"}, "expected true or false"},
      {{"inspect", "--", "--names"}, "'--names': there is no such file"},
  };
  for (const auto& row : rows) {
    const ToolResult result = Tool(row.arguments);
    EXPECT_EQ(result.code, kExitError);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr("checkpoint: "), HasSubstr(row.problem)));
  }
  SaveSample(InFolder("run"), {{"dp", 1}});
  EXPECT_THAT(Tool({"convert", InFolder("run"), InFolder("x"), "--to=onnx"}).err,
              HasSubstr("--to is 'onnx'"));
}

TEST(RunTool, ShowsProgressOnStderrIfAsked) {
  SaveSample(InFolder("run"), {{"dp", 2}});
  const std::string run = InFolder("run");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"verify", run, "--progress"},
        {"diff", run, run, "--progress"},
        {"convert", run, InFolder("out"), "--progress"}}) {
    const ToolResult result = Tool(arguments);
    EXPECT_EQ(result.code, kExitOk);
    EXPECT_THAT(result.err, AllOf(HasSubstr(arguments[0] + ": "), HasSubstr(" %, "),
                                  HasSubstr(" of 1.1 KiB, ")))
        << result.err;
  }
  EXPECT_EQ(Tool({"verify", run}).err, "");
}

TEST(NameFilter, MatchesNamesAndWhatIsBelowThem) {
  const struct {
    const char* patterns;
    const char* name;
    bool matches;
  } rows[] = {
      {"", "a", true},
      {"a", "a", true},
      {"a", "a.b.c", true},
      {"a.b", "a.b.c", true},
      {"a", "ab", false},
      {"a", "b.a", false},
      {"layers.*.w", "layers.11.w", true},
      {"layers.*.w", "layers.11.w.bias", true},
      {"layers.*.w", "layers.11.v", false},
      {"x,,a", "a.b", true},
      {"*", "a.b", true},
  };
  for (const auto& row : rows)
    EXPECT_EQ(NameFilter(row.patterns).Matches(row.name), row.matches)
        << row.patterns << " " << row.name;
}

}  // namespace
}  // namespace shardmesh::checkpoint::tool
