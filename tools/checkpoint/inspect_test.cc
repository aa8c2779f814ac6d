// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/manager.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/tools/checkpoint/testing/sample_checkpoints.h"

namespace shardmesh::checkpoint::tool {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::InFolder;
using ::testing::Not;
using testing::OnRanks;
using testing::SampleState;
using testing::SaveSample;
using testing::Tool;
using testing::ToolResult;

const std::string kDcp = "tests/testdata/golden/dcp/";

TEST(Inspect, ShowsWhatRanksHaveSaved) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  const ToolResult result = Tool({"inspect", InFolder("run")});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("run: Shardmesh, 3 files\n"),
            ContainsRegex(R"(embed.weight +F32 +\[13,7\] +3 +364  \[S\(0\)\] @ \[dp=3\])"),
            HasSubstr("\n    = head.weight\n"), ContainsRegex(R"(half +F16 +\[11,4\] +2 +88 )"),
            ContainsRegex(R"(layers.0.norm +BF16 +\[7\] +[13] +14 )"),
            ContainsRegex(R"(none +F32 +\[0,4\] +1 +0 )"),
            ContainsRegex(R"(scalar +F64 +\[\] +1 +8)"), HasSubstr("step = 9007199254740993\n"),
            HasSubstr("rate = 0.1\n"), HasSubstr(R"(note = 'a "b"\n\xc3\xa9')"),
            HasSubstr("list = [-1, 0.5, 'x', [true]]\n"),
            HasSubstr("total: 10 tensors, 1.1 KiB, 4 plain values\n")));
}

TEST(Inspect, ShowsPiecesAndNamesThatAreAskedFor) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  const ToolResult result =
      Tool({"inspect", InFolder("run"), "--names=head,layers.*.norm,rate", "--pieces"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(ContainsRegex(R"(\[5:10, 0:7\]  shard-00002-of-00003.safetensors at [0-9]+, 140 )"
                          R"(bytes, checksum [0-9a-f]{16})"),
            HasSubstr("layers.0.norm"), Not(HasSubstr("layers.0.mask")), HasSubstr("rate = "),
            Not(HasSubstr("step = ")), HasSubstr("total: 2 tensors, 378 B, 1 plain value\n")));
}

TEST(Inspect, ShowsOtherFormats) {
  const ToolResult boxes = Tool({"inspect", kDcp + "fsdp"});
  EXPECT_EQ(boxes.code, kExitOk) << boxes.err;
  EXPECT_THAT(boxes.out, HasSubstr("fsdp: PyTorch distributed, 4 files\n"));
  const ToolResult whole = Tool({"inspect", kDcp + "fsdp/whole/expected.safetensors"});
  EXPECT_EQ(whole.code, kExitOk) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("expected.safetensors: Hugging Face, 1 file\n"));
  // The same tensors.
  EXPECT_EQ(boxes.out.substr(boxes.out.find("total:")), whole.out.substr(whole.out.find("total:")));

  SafetensorsBuilder builder;
  builder.Add("q", "F8_E4M3", {3}, "abc").Add("u", "U8", {2}, "de");
  WriteTestFile("model.safetensors", builder.Build());
  const ToolResult eight_bits = Tool({"inspect", TestFolder()});
  EXPECT_EQ(eight_bits.code, kExitOk) << eight_bits.err;
  EXPECT_THAT(eight_bits.out, AllOf(ContainsRegex(R"(q +F8_E4M3 +\[3\] +1 +3)"),
                                    ContainsRegex(R"(u +U8 +\[2\] +1 +2)")));
}

TEST(Inspect, TakesTheLatestStepThatIsWhole) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const auto manager =
        CheckpointManager::Open(InFolder("run"), mesh.WorldGroup(), {.sync = false});
    ASSERT_TRUE(manager.ok()) << manager.status();
    for (const int64_t step : {9, 10, 11})
      EXPECT_EQ((*manager)->Save(step, SampleState(mesh)), absl::OkStatus());
    // While the run still has its directory locked.
    if (mesh.WorldGroup().rank() > 0) return;
    EXPECT_THAT(Tool({"inspect", InFolder("run")}).out, HasSubstr("/run/step-11: "));
  });
  std::filesystem::remove(InFolder("run/step-11/shard-00002-of-00002.safetensors"));
  const ToolResult result = Tool({"inspect", InFolder("run")});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.out, HasSubstr("/run/step-10: "));
  EXPECT_THAT(result.err, AllOf(HasSubstr("/run/step-11' is not whole"), Not(HasSubstr("step-9"))));
  for (const char* step : {"step-9", "step-10"})
    std::filesystem::remove(InFolder(absl::StrCat("run/", step, "/shardmesh.index.json")));
  EXPECT_THAT(Tool({"inspect", InFolder("run")}).err, HasSubstr("none of its 3 checkpoints"));
}

TEST(Inspect, SaysWhyThereIsNothingToShow) {
  const ToolResult none = Tool({"inspect", InFolder("none")});
  EXPECT_EQ(none.code, kExitError);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, AllOf(HasSubstr("/none'"), HasSubstr("there is no such file")));
  EXPECT_EQ(Tool({"inspect", TestFolder()}).code, kExitError);
  WriteTestFile("pytorch_model.bin", "");
  const ToolResult pickle = Tool({"inspect", TestFolder()});
  EXPECT_EQ(pickle.code, kExitError);
  EXPECT_THAT(pickle.err, HasSubstr("is a pickle"));
}

TEST(Inspect, EscapesNamesForTheTerminal) {
  SafetensorsBuilder builder;
  builder.Add(R"(\u001b[2J\nx)", "F32", {0}, "");
  const ToolResult result = Tool({"inspect", WriteTestFile("odd.safetensors", builder.Build())});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr(R"('\x1b[2J\nx')"));
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace shardmesh::checkpoint::tool
