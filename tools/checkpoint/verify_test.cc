// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/checksum.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/tools/checkpoint/testing/sample_checkpoints.h"

namespace shardmesh::checkpoint::tool {
namespace {

using ::testing::AllOf;
using testing::Damage;
using ::testing::HasSubstr;
using testing::InFolder;
using ::testing::Not;
using testing::ReadFile;
using testing::SaveSample;
using testing::Tool;
using testing::ToolResult;
using testing::WriteFile;

const std::string kDcp = "tests/testdata/golden/dcp/";
const std::string kSecond = "shard-00002-of-00003.safetensors";

// Replaces the index by one of other contents, with a right checksum.
void ChangeIndex(const std::string& path, const std::function<void(Contents&)>& change) {
  absl::StatusOr<Contents> contents = Contents::Open(path);
  ASSERT_TRUE(contents.ok()) << contents.status();
  change(*contents);
  WriteFile(absl::StrCat(path, "/", kIndexName), internal::WithChecksum(*contents->ToJson()));
}

StoredArray& Find(Contents& contents, const std::string& name) {
  for (StoredArray& array : contents.arrays) {
    if (array.name == name) return array;
  }
  ADD_FAILURE() << name;
  return contents.arrays[0];
}

TEST(Verify, FindsNothingInWhatIsWhole) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  ToolResult result = Tool({"verify", InFolder("run")});
  EXPECT_EQ(result.code, kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("run: no fault in 10 tensors, 3 files, 1.1 KiB; checksums "),
                    HasSubstr("of 21 of 21 pieces\n")));
  result = Tool({"verify", kDcp + "fsdp_tp"});
  EXPECT_EQ(result.code, kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("no fault in"), HasSubstr("checksums of 0 of ")));
}

TEST(Verify, NamesFileAndTensorOfEachFault) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  const absl::StatusOr<Contents> contents = Contents::Open(InFolder("run"));
  ASSERT_TRUE(contents.ok());
  // A byte of each piece.
  int num_pieces = 0;
  for (const StoredArray& array : contents->arrays) {
    for (const StoredPiece& piece : array.pieces) {
      if (piece.bytes == 0) continue;
      ++num_pieces;
      const std::string file = contents->files[piece.file].name;
      Damage(InFolder("run/" + file), piece.begin + piece.bytes - 1);
      const ToolResult result = Tool({"verify", InFolder("run")});
      Damage(InFolder("run/" + file), piece.begin + piece.bytes - 1);
      EXPECT_EQ(result.code, kExitFound);
      EXPECT_THAT(result.out, AllOf(HasSubstr(file), HasSubstr(absl::StrCat("'", array.name, "'")),
                                    HasSubstr(piece.box.ToString()), HasSubstr(": 1 fault in")));
    }
  }
  EXPECT_GT(num_pieces, 15);
  EXPECT_EQ(Tool({"verify", InFolder("run")}).code, kExitOk);
}

TEST(Verify, GoesOnAfterAFault) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  Damage(InFolder("run/shard-00001-of-00003.safetensors"), -1);
  Damage(InFolder("run/" + kSecond), 8);  // The header is no JSON.
  std::filesystem::remove(InFolder("run/shard-00003-of-00003.safetensors"));
  const ToolResult result = Tool({"verify", InFolder("run")});
  EXPECT_EQ(result.code, kExitFound);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("shard-00001-of-00003.safetensors': tensor '"), HasSubstr(kSecond),
                    HasSubstr("shard-00003-of-00003.safetensors': "),
                    HasSubstr("tensors in it: embed.weight"), HasSubstr(": 3 faults in")));
}

TEST(Verify, FindsFilesOfAnotherLength) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  const std::string bytes = ReadFile(InFolder("run/" + kSecond));
  for (const std::string& other :
       {bytes.substr(0, bytes.size() - 1), bytes + "x", std::string(), bytes.substr(0, 5)}) {
    WriteFile(InFolder("run/" + kSecond), other);
    const ToolResult result = Tool({"verify", InFolder("run")});
    EXPECT_EQ(result.code, kExitFound);
    EXPECT_THAT(result.out, AllOf(HasSubstr(kSecond), HasSubstr("run: 1 fault in")));
  }
}

TEST(Verify, FindsBoxesThatDoNotCoverTheirTensorOnce) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  ChangeIndex(InFolder("run"), [](Contents& contents) {
    Find(contents, "embed.weight").pieces.pop_back();
    StoredArray& ids = Find(contents, "w64");
    ids.pieces.push_back(ids.pieces[0]);
  });
  const ToolResult result = Tool({"verify", InFolder("run")});
  EXPECT_EQ(result.code, kExitFound);
  EXPECT_THAT(result.out, AllOf(HasSubstr("'embed.weight': no file has box [10:13, 0:7]"),
                                HasSubstr("'w64': box "), HasSubstr("overlaps another"),
                                HasSubstr("run: 2 faults in")));
  const ToolResult incomplete = Tool({"verify", kDcp + "incomplete"});
  EXPECT_EQ(incomplete.code, kExitFound);
  EXPECT_THAT(incomplete.out, AllOf(HasSubstr("no file has box"), HasSubstr("1 fault")));
}

TEST(Verify, FindsADamagedIndex) {
  SaveSample(InFolder("run"), {{"dp", 3}});
  Damage(InFolder("run/shardmesh.index.json"), -20);
  const ToolResult result = Tool({"verify", InFolder("run")});
  EXPECT_EQ(result.code, kExitFound);
  EXPECT_THAT(result.out, AllOf(HasSubstr("the index is damaged"), HasSubstr("run: 1 fault\n")));
}

TEST(Verify, FindsEachBrokenFileOfHuggingFace) {
  SafetensorsBuilder builder;
  builder.Add("x", "F32", {1}, BytesOf<float>({1}));
  const std::string good = builder.Build();
  WriteTestFile("model-00001-of-00003.safetensors", good);
  WriteTestFile("model-00002-of-00003.safetensors", good.substr(0, good.size() - 1));
  WriteTestFile("model-00003-of-00003.safetensors", "");
  WriteTestFile(
      "model.safetensors.index.json",
      R"({"weight_map":{"x":"model-00001-of-00003.safetensors",)"
      R"("y":"model-00002-of-00003.safetensors","z":"model-00003-of-00003.safetensors"}})");
  const ToolResult result = Tool({"verify", TestFolder()});
  EXPECT_EQ(result.code, kExitFound);
  EXPECT_THAT(result.out, AllOf(Not(HasSubstr("model-00001")), HasSubstr("model-00002"),
                                HasSubstr("model-00003"), HasSubstr(": 2 faults\n")));
}

TEST(Verify, SaysWhatItCannotLookAt) {
  const ToolResult result = Tool({"verify", InFolder("none")});
  EXPECT_EQ(result.code, kExitError);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("/none'"));
}

// Whatever the bytes are, each command ends with a code, and a changed byte is never passed over by
// verify.
TEST(Verify, SurvivesRandomDamage) {
  SaveSample(InFolder("good"), {{"dp", 2}});
  SaveSample(InFolder("run"), {{"dp", 2}});
  std::mt19937 random(7);
  for (const char* name : {"shardmesh.index.json", "shard-00001-of-00002.safetensors"}) {
    const std::string path = absl::StrCat(InFolder("run"), "/", name);
    const std::string bytes = ReadFile(path);
    for (int i = 0; i < 150; ++i) {
      std::string other = bytes;
      for (int n = 0; n <= i % 3; ++n)
        other[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
      if (i % 10 == 9) other.resize(random() % bytes.size());
      if (other == bytes) continue;
      // A right checksum lets the damage reach the parser.
      constexpr size_t kChecksumMember = sizeof(R"({"checksum":"0123456789abcdef",)") - 1;
      const bool is_renewed =
          i % 2 == 1 && std::string(name) == kIndexName && other.size() > kChecksumMember;
      if (is_renewed) other = internal::WithChecksum("{" + other.substr(kChecksumMember));
      WriteFile(path, other);
      const int code = Tool({"verify", InFolder("run")}).code;
      EXPECT_TRUE(is_renewed || code == kExitFound) << name << " " << i;
      EXPECT_NE(Tool({"inspect", "--pieces", InFolder("run")}).code, kExitFound);
      Tool({"diff", InFolder("good"), InFolder("run")});
      Tool({"convert", "--overwrite", InFolder("run"), InFolder("out")});
    }
    WriteFile(path, bytes);
  }
}

}  // namespace
}  // namespace shardmesh::checkpoint::tool
