// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/checkpoint_reader.h"

#include <sys/resource.h>

#include <thread>

#include "shardmesh/checkpoint/testing/safetensors_builder.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;
using Code = absl::StatusCode;

std::string OneFloat(const std::string& name, float value) {
  return SafetensorsBuilder().Add(name, "F32", {1}, BytesOf<float>({value})).Build();
}

std::string TwoFloats(const std::string& first, const std::string& second) {
  SafetensorsBuilder builder;
  builder.Add(first, "F32", {1}, BytesOf<float>({-1}));
  builder.Add(second, "F32", {2}, BytesOf<float>({-2, -3}));
  return builder.Build();
}

// Shards of "a" and of "b", "c", and an index of this weight_map.
void WriteShards(const std::string& weight_map) {
  WriteTestFile("1.safetensors", OneFloat("a", 5));
  WriteTestFile("sub/2.safetensors", TwoFloats("b", "c"));
  WriteTestFile("model.safetensors.index.json",
                absl::StrCat(R"({"metadata":{"total_size":16},"weight_map":)", weight_map, "}"));
}

constexpr char kWeightMap[] =
    R"({"c":"sub/2.safetensors","a":"1.safetensors","b":"sub/2.safetensors"})";

float ReadOne(const CheckpointReader& reader, const std::string& name, int64_t index) {
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {1}, DType::kF32);
  const absl::Status status = reader.ReadBox(name, {{index}, {index + 1}}, out);
  EXPECT_TRUE(status.ok()) << status;
  return out.data<float>()[0];
}

TEST(CheckpointReader, OpensAFileOrADirectoryWithOne) {
  const std::string path = WriteTestFile("model.safetensors", OneFloat("x", 2.5f));
  WriteTestFile("model.safetensors.index.json", "not looked at");
  for (const std::string& way : {path, TestFolder(), TestFolder() + "/"}) {
    SCOPED_TRACE(way);
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(way);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_THAT(reader->Names(), ElementsAre("x"));
    EXPECT_EQ(ReadOne(*reader, "x", 0), 2.5f);
    EXPECT_EQ(reader->files().size(), 1u);
  }
}

TEST(CheckpointReader, ReadsTensorsOfSeveralFilesByTheIndex) {
  WriteShards(kWeightMap);
  for (const std::string& way : {TestFolder(), TestFolder() + "/model.safetensors.index.json"}) {
    SCOPED_TRACE(way);
    absl::StatusOr<CheckpointReader> opened = CheckpointReader::Open(way);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const CheckpointReader reader = *std::move(opened);
    EXPECT_THAT(reader.Names(), ElementsAre("a", "b", "c"));
    EXPECT_EQ(ReadOne(reader, "a", 0), 5);
    EXPECT_EQ(ReadOne(reader, "b", 0), -1);
    const int64_t before = reader.bytes_read();
    EXPECT_EQ(ReadOne(reader, "c", 1), -3);
    EXPECT_EQ(reader.bytes_read() - before, 4);
    ASSERT_NE(reader.Find("c"), nullptr);
    EXPECT_EQ(reader.Find("c")->shape, std::vector<int64_t>{2});
    EXPECT_EQ(reader.Find("d"), nullptr);
    ExecutionContext context;
    Tensor out = Tensor::Empty(context, {2}, DType::kF64);
    EXPECT_TRUE(reader.Read("c", out, {.allow_cast = true}).ok());
    EXPECT_THAT(out.ToVector<double>(), ElementsAre(-2, -3));
    ExpectError(reader.Read("d", out), Code::kNotFound, {way, "'d'"});
    ExpectError(reader.Read("a", out), Code::kInvalidArgument, {"1.safetensors", "'a'"});
  }
}

TEST(CheckpointReader, AnIndexMayBeNamedRelativeToTheWorkingDirectory) {
  WriteShards(kWeightMap);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(TestFolder());
  EXPECT_TRUE(CheckpointReader::Open("model.safetensors.index.json").ok());
  EXPECT_TRUE(CheckpointReader::Open(".").ok());
  std::filesystem::current_path(before);
}

TEST(CheckpointReader, KeepsTensorsThatTheIndexDoesNotList) {
  WriteShards(R"({"a":"1.safetensors","b":"sub/2.safetensors"})");
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(TestFolder());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(ReadOne(*reader, "c", 0), -2);
}

TEST(CheckpointReader, RefusesANameInTwoFiles) {
  WriteShards(kWeightMap);
  WriteTestFile("1.safetensors", TwoFloats("a", "b"));
  ExpectError(CheckpointReader::Open(TestFolder()).status(), Code::kInvalidArgument,
              {"'b'", "1.safetensors", "sub/2.safetensors"});
}

TEST(CheckpointReader, RefusesAnIndexThatLeadsOutOfItsDirectory) {
  for (const char* file : {"../x.safetensors", "/etc/passwd", "sub/../../x", "..", ".", "", "sub/",
                           "./1.safetensors", "sub//2.safetensors", "1.safetensors\\u0000"}) {
    WriteShards(absl::StrCat(R"({"a":")", file, R"("})"));
    ExpectError(CheckpointReader::Open(TestFolder()).status(), Code::kInvalidArgument,
                {"model.safetensors.index.json", "tensor 'a'", "leads out of the directory"});
  }
}

TEST(CheckpointReader, RefusesAnIndexThatDoesNotFitItsFiles) {
  WriteShards(R"({"a":"sub/2.safetensors"})");
  ExpectError(CheckpointReader::Open(TestFolder()).status(), Code::kInvalidArgument,
              {"index.json", "'a'", "is not in 'sub/2.safetensors'"});
  WriteShards(R"({"a":"3.safetensors"})");
  ExpectError(CheckpointReader::Open(TestFolder()).status(), Code::kNotFound,
              {"index.json", "3.safetensors"});
  WriteShards(R"({"a":"sub"})");
  ExpectError(CheckpointReader::Open(TestFolder()).status(), Code::kInvalidArgument,
              {"index.json", "a directory"});
}

TEST(CheckpointReader, RefusesWhatIsNoIndex) {
  const struct {
    std::string json;
    std::string problem;
  } rows[] = {
      {"", "invalid JSON"},
      {"[]", "should be a JSON object"},
      {"{}", "no weight_map"},
      {R"({"weight_map":[]})", "weight_map should be a JSON object"},
      {R"({"weight_map":{"a":1}})", "tensor 'a' should have the name of a file"},
      {R"({"weight_map":{"a":{"b":"1.safetensors"}}})", "tensor 'a' should have"},
      {R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})", "'a' appears twice"},
      {R"({"weight_map":{},"weight_map":{}})", "'weight_map' appears twice"},
      {R"({"weight_map":{})", "invalid JSON"},
      {std::string("{\"weight_map\":{}}\0", 18), "NUL"},
      {R"({"x":)" + std::string(100'000, '['), "levels deep"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.json.substr(0, 100));
    WriteTestFile("model.safetensors.index.json", row.json);
    ExpectError(CheckpointReader::Open(TestFolder()).status(), Code::kInvalidArgument,
                {"model.safetensors.index.json': ", row.problem});
  }
}

TEST(CheckpointReader, NamesPathsThatHoldNoCheckpoint) {
  const std::string folder = TestFolder();
  ExpectError(CheckpointReader::Open(folder).status(), Code::kNotFound,
              {folder, "neither model.safetensors nor model.safetensors.index.json"});
  ExpectError(CheckpointReader::Open(folder + "/none").status(), Code::kNotFound,
              {folder + "/none"});
  ExpectError(CheckpointReader::Open(folder + "/none.index.json").status(), Code::kNotFound,
              {folder + "/none.index.json"});
  std::filesystem::create_directories(folder + "/model.safetensors");
  ExpectError(CheckpointReader::Open(folder).status(), Code::kInvalidArgument, {"a directory"});
}

// Every file stayed open: 1,500 shards failed at the usual limit of 1,024.
TEST(CheckpointReader, ReadsMoreFilesThanAProcessMayHaveOpen) {
  constexpr int kShards = 1'500;
  std::string map;
  for (int i = 0; i < kShards; ++i) {
    WriteTestFile(absl::StrCat(i, ".safetensors"), OneFloat(absl::StrCat("t", i), i * 0.5f - 7));
    absl::StrAppend(&map, i == 0 ? "" : ",", "\"t", i, "\":\"", i, ".safetensors\"");
  }
  WriteTestFile("model.safetensors.index.json", absl::StrCat(R"({"weight_map":{)", map, "}}"));
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(TestFolder());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const absl::StatusOr<CheckpointReader> second = CheckpointReader::Open(TestFolder());
  ASSERT_TRUE(second.ok()) << second.status();
  // There and back, so that files are closed and opened again; several ranks at once.
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int step = 0; step < 2 * kShards; ++step) {
        const int i = step < kShards ? step : 2 * kShards - 1 - step;
        const CheckpointReader& own = rank == 0 ? *second : *reader;
        ASSERT_EQ(ReadOne(own, absl::StrCat("t", i), 0), i * 0.5f - 7);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// They went into messages as they were, with their newlines and all their characters.
TEST(CheckpointReader, QuotesAndCutsNamesOfFilesAndTensors) {
  const std::string odd = "\x1b[2J\n" + std::string(5000, 'x');
  // Odd at both ends: the middle is cut, and a name may follow the path of a long folder.
  const std::string json_odd = R"(\u001b[2J\n)" + std::string(5000, 'x') + R"(\n\u001b[2J)";
  for (const std::string& map : {R"({"a":")" + json_odd + R"("})", R"({")" + json_odd + R"(":1})",
                                 R"({")" + json_odd + R"(":"1.safetensors"})"}) {
    WriteShards(map);
    const std::string message(CheckpointReader::Open(TestFolder()).status().message());
    EXPECT_THAT(message, ::testing::HasSubstr(R"(xxx\n\x1b[2J')"));
    for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << static_cast<int>(c);
    EXPECT_LT(message.size(), 1500u);
  }
  const std::string path_message(CheckpointReader::Open("/none/" + odd).status().message());
  EXPECT_THAT(path_message, ::testing::HasSubstr(R"('/none/\x1b[2J\nxxx)"));
  EXPECT_LT(path_message.size(), 500u);
}

TEST(CheckpointReader, OpensTheGoldenModels) {
  for (const char* name : {"plain", "gqa_tied", "llama3_rope_bias"}) {
    const auto reader = CheckpointReader::Open(std::string("tests/testdata/golden/llama/") + name);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_NE(reader->Find("model.norm.weight"), nullptr);
  }
}

}  // namespace
}  // namespace shardmesh
