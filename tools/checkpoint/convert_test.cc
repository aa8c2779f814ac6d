// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/convert.h"

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/export.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/testing/failing_files.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/tools/checkpoint/testing/sample_checkpoints.h"

namespace shardmesh::checkpoint::tool {
namespace {

using checkpoint::testing::FailingFiles;
using checkpoint::testing::Failure;
using ::testing::AllOf;
using testing::Damage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::InFolder;
using testing::OnRanks;
using testing::ReadFile;
using testing::SampleState;
using testing::SampleValue;
using testing::SaveSample;
using testing::Tool;
using testing::ToolResult;

const std::string kDcp = "tests/testdata/golden/dcp/";

std::vector<std::string> NamesIn(const std::string& path) { return *SystemFiles().List(path); }

void ExpectSameFiles(const std::string& a, const std::string& b) {
  EXPECT_EQ(NamesIn(a), NamesIn(b));
  for (const std::string& name : NamesIn(a))
    EXPECT_TRUE(ReadFile(a + "/" + name) == ReadFile(b + "/" + name)) << name;
}

TEST(Convert, WritesTheBytesOfExportHuggingFace) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  const struct {
    std::vector<std::string> flags;
    int64_t max_file_bytes;
    std::optional<DType> dtype;
  } rows[] = {
      {{}, 5'000'000'000, {}},
      {{"--max_file_bytes=300"}, 300, {}},
      {{"--max_file_bytes=0", "--dtype=bf16"}, 0, DType::kBF16},
      {{"--dtype=f64"}, 5'000'000'000, DType::kF64},
  };
  int number = 0;
  for (const auto& row : rows) {
    const std::string expected = InFolder(absl::StrCat("expected-", number));
    const std::string path = InFolder(absl::StrCat("converted-", number++));
    OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
      ExportOptions options;
      options.max_file_bytes = row.max_file_bytes;
      options.dtype = row.dtype;
      EXPECT_EQ(ExportHuggingFace(expected, SampleState(mesh), options), absl::OkStatus());
    });
    std::vector<std::string> arguments = {"convert", InFolder("run"), path};
    arguments.insert(arguments.end(), row.flags.begin(), row.flags.end());
    const ToolResult result = Tool(arguments);
    EXPECT_EQ(result.code, kExitOk) << result.err;
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("Hugging Face, 10 tensors in "), HasSubstr("4 plain values left")));
    ExpectSameFiles(expected, path);
  }
}

// Loads it on a mesh and saves that again: nothing may differ from what was saved at first.
void ExpectLoads(const std::string& path, const MeshShape& mesh, const LoadOptions& options) {
  OnRanks(mesh, [&](const DeviceMesh& own) {
    StateDict state = SampleState(own, [](const std::string&, int64_t) { return 0.0; });
    EXPECT_EQ(Load(path, state, options), absl::OkStatus());
    EXPECT_EQ(Save(InFolder("again"), state, {.overwrite = true, .sync = false}), absl::OkStatus());
  });
  const ToolResult result = Tool({"diff", InFolder("run"), InFolder("again")});
  EXPECT_EQ(result.code, kExitOk) << result.out << result.err;
}

TEST(Convert, ComesBackFromHuggingFace) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  ASSERT_EQ(Tool({"convert", InFolder("run"), InFolder("hf"), "--max_file_bytes=200"}).code, 0);
  const ToolResult result = Tool({"convert", InFolder("hf"), InFolder("back")});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("back: Shardmesh, 10 tensors in 1 file"));
  EXPECT_THAT(NamesIn(InFolder("back")),
              ElementsAre("shard-00001-of-00001.safetensors", "shardmesh.index.json"));
  EXPECT_EQ(Verify(InFolder("back")), absl::OkStatus());
  EXPECT_THAT(Tool({"verify", InFolder("back")}).out, HasSubstr("of 10 of 10 pieces"));
  ExpectLoads(InFolder("back"), {{"dp", 2}, {"tp", 2}}, {.allow_missing = true});
}

// Aliases and plain values too, in several files.
TEST(Convert, KeepsAllOfAStateInItsOwnFormat) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  const ToolResult result = Tool(
      {"convert", InFolder("run"), InFolder("copy"), "--to=shardmesh", "--max_file_bytes=300"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_GT(NamesIn(InFolder("copy")).size(), 3u);
  ExpectLoads(InFolder("copy"), {{"dp", 3}}, {.verify = true});
  EXPECT_THAT(Tool({"inspect", InFolder("copy")}).out,
              AllOf(HasSubstr("    = head.weight"), HasSubstr("step = 9007199254740993")));
}

TEST(Convert, JoinsTheBoxesOfPyTorch) {
  for (const std::string name : {"fsdp", "fsdp_tp"}) {
    ToolResult result = Tool({"convert", kDcp + name, InFolder(name)});
    EXPECT_EQ(result.code, kExitOk) << result.err;
    result = Tool({"diff", InFolder(name), kDcp + name, "--bits"});
    EXPECT_EQ(result.code, kExitOk) << result.out << result.err;
    result = Tool({"convert", kDcp + name, InFolder(name + "-hf"), "--to=huggingface"});
    EXPECT_EQ(result.code, kExitOk) << result.err;
    EXPECT_THAT(NamesIn(InFolder(name + "-hf")), ElementsAre("model.safetensors"));
  }
  EXPECT_EQ(Tool({"convert", kDcp + "incomplete", InFolder("no")}).code, kExitError);
  EXPECT_FALSE(std::filesystem::exists(InFolder("no")));
}

TEST(Convert, IsTheSameThroughAnyBuffer) {
  SaveSample(InFolder("run"), {{"dp", 2}, {"tp", 3}});
  ASSERT_EQ(Tool({"convert", InFolder("run"), InFolder("expected")}).code, kExitOk);
  for (const int64_t buffer_bytes : {1, 24, 100}) {
    std::ostringstream out, err;
    Console console = {out, err, false};
    const std::string path = InFolder(absl::StrCat("by-", buffer_bytes));
    EXPECT_EQ(Convert(InFolder("run"), path, {.buffer_bytes = buffer_bytes}, console),
              absl::OkStatus());
    ExpectSameFiles(InFolder("expected"), path);
  }
}

TEST(Convert, TakesAndRenamesWhatIsAskedFor) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  WriteTestFile("my.json", "{\"a\": 1}");
  ToolResult result =
      Tool({"convert", InFolder("run"), InFolder("part"), "--names=layers,head", "--strip_prefix",
            "layers.", "--add_prefix=x.", "--config", InFolder("my.json")});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(Tool({"convert", InFolder("run"), InFolder("no"), "--config=/none.json"}).err,
              HasSubstr("'/none.json': "));
  EXPECT_THAT(NamesIn(InFolder("part")), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(ReadFile(InFolder("part/config.json")), "{\"a\": 1}");
  const auto contents = Contents::Open(InFolder("part"));
  ASSERT_TRUE(contents.ok()) << contents.status();
  std::vector<std::string> names;
  for (const StoredArray& array : contents->arrays) names.push_back(array.name);
  EXPECT_THAT(names, ElementsAre("x.0.mask", "x.0.norm", "x.1.counts", "x.head.weight"));
  result = Tool({"convert", InFolder("run"), InFolder("no"), "--names=nothing"});
  EXPECT_EQ(result.code, kExitError);
  EXPECT_THAT(result.err, HasSubstr("no tensor matches --names=nothing"));

  SafetensorsBuilder builder;
  builder.Add("a.x", "F32", {0}, "").Add("x", "F32", {0}, "");
  const std::string two = WriteTestFile("two.safetensors", builder.Build());
  for (const char* to : {"--to=shardmesh", "--to=huggingface"}) {
    result = Tool({"convert", two, InFolder("no"), "--strip_prefix=a.", to});
    EXPECT_EQ(result.code, kExitError);
    EXPECT_THAT(result.err, HasSubstr("two tensors get the name 'x'"));
  }
}

TEST(Convert, RefusesWhatItCannotWriteRightly) {
  SaveSample(InFolder("run"), {{"dp", 3}}, [](const std::string& name, int64_t index) {
    return name == "w64" && index == 17 ? 1e6 : SampleValue(name, index);
  });
  ToolResult result = Tool({"convert", InFolder("run"), InFolder("out"), "--dtype=f16"});
  EXPECT_EQ(result.code, kExitError);
  EXPECT_THAT(result.err, AllOf(HasSubstr("'w64'"), HasSubstr("1000000, which would become inf")));
  SafetensorsBuilder builder;
  builder.Add("q", "F8_E4M3", {1}, "a");
  result = Tool({"convert", WriteTestFile("q.safetensors", builder.Build()), InFolder("out")});
  EXPECT_EQ(result.code, kExitError);
  EXPECT_THAT(result.err, AllOf(HasSubstr("'q' is F8_E4M3"), HasSubstr("--names")));
  // A damaged byte does not get a new checksum.
  Damage(InFolder("run/shard-00003-of-00003.safetensors"), -1);
  result = Tool({"convert", InFolder("run"), InFolder("out")});
  EXPECT_EQ(result.code, kExitError);
  EXPECT_THAT(result.err, AllOf(HasSubstr("shard-00003"), HasSubstr("is damaged")));
  EXPECT_THAT(NamesIn(TestFolder()), ElementsAre("q.safetensors", "run"));
  EXPECT_EQ(Tool({"convert", InFolder("run"), InFolder("out"), "--noverify"}).code, kExitOk);
}

TEST(Convert, ReplacesOnlyACheckpointAndOnlyIfAsked) {
  SaveSample(InFolder("run"), {{"dp", 2}});
  SaveSample(InFolder("out"), {{"dp", 3}});
  const std::string run = InFolder("run"), out = InFolder("out");
  ToolResult result = Tool({"convert", run, out});
  EXPECT_EQ(result.code, kExitError);
  EXPECT_THAT(result.err, AllOf(HasSubstr("/out' exists"), HasSubstr("--overwrite")));
  EXPECT_EQ(Tool({"verify", out}).code, kExitOk);
  EXPECT_EQ(Tool({"convert", run, out + "/", "--overwrite"}).code, kExitOk);
  EXPECT_THAT(NamesIn(out), ElementsAre("model.safetensors"));
  EXPECT_THAT(NamesIn(TestFolder()), ElementsAre("out", "run"));

  // What would remove more than a checkpoint, or what is being read.
  std::filesystem::create_directories(InFolder("home/other"));
  WriteTestFile("file", "x");
  std::filesystem::create_directories(InFolder("manager/step-1"));
  SaveSample(InFolder("manager/step-1"), {{"dp", 2}});
  for (const char* target : {"home", "file", "manager"}) {
    result = Tool({"convert", run, InFolder(target), "--overwrite"});
    EXPECT_EQ(result.code, kExitError) << target;
    EXPECT_THAT(result.err, HasSubstr("is no checkpoint directory"));
    EXPECT_TRUE(std::filesystem::exists(InFolder(target)));
  }
  EXPECT_TRUE(std::filesystem::exists(InFolder("manager/step-1/shardmesh.index.json")));
  std::filesystem::create_directory_symlink(run, InFolder("link"));
  for (const std::string& target : {run, run + "/inner", TestFolder(), InFolder("link")}) {
    result = Tool({"convert", run, target, "--overwrite"});
    EXPECT_EQ(result.code, kExitError);
    EXPECT_THAT(result.err, HasSubstr("are in one another"));
  }
  EXPECT_EQ(Tool({"verify", run}).code, kExitOk);
}

TEST(Convert, IsWholeOrNotThereWhateverFails) {
  SaveSample(InFolder("run"), {{"dp", 2}});
  std::ostringstream out, err;
  Console console = {out, err, false};
  int at = 0;
  for (bool has_failed = true; has_failed; ++at) {
    FailingFiles files(Failure::kShortWrite, at);
    const absl::Status status =
        Convert(InFolder("run"), InFolder("hf"),
                {.max_file_bytes = 300, .overwrite = true, .files = &files}, console);
    has_failed = files.has_failed();
    EXPECT_TRUE(has_failed || status.ok()) << at << " " << status;
    const bool is_there = std::filesystem::exists(InFolder("hf"));
    EXPECT_TRUE(is_there || !status.ok()) << at;
    EXPECT_TRUE(!is_there || Tool({"diff", InFolder("run"), InFolder("hf")}).code == kExitOk) << at;
    std::filesystem::remove_all(InFolder("hf"));
  }
  EXPECT_GT(at, 15);
}

}  // namespace
}  // namespace shardmesh::checkpoint::tool
