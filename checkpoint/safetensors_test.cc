// SPDX-License-Identifier: Apache-2.0
//
// Opening safetensors files: what is listed, what is refused, and the golden files.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;
using Code = absl::StatusCode;

SafetensorsFile OpenOrDie(const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) ADD_FAILURE() << file.status();
  return *std::move(file);
}

absl::Status OpenStatus(const std::string& path) { return SafetensorsFile::Open(path).status(); }

// The error of a file with this header and so many bytes of data.
absl::Status HeaderStatus(const std::string& header, size_t data_bytes) {
  return OpenStatus(
      WriteTestFile("x.safetensors", SafetensorsBytes(header, std::string(data_bytes, '\1'))));
}

std::string Entry(const std::string& name, const std::string& fields) {
  return absl::StrCat("{\"", name, "\":{", fields, "}}");
}

// ---- golden files -------------------------------------------------------------------------------

std::string Golden(const std::string& name) { return "tests/testdata/golden/" + name; }

uint64_t Fnv1a(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// The bytes of a tensor as Read gives them; of one that cannot be read, as they are in the file.
std::string TensorBytes(const SafetensorsFile& file, const StoredTensor& stored) {
  std::string bytes(static_cast<size_t>(stored.Bytes()), '\0');
  if (!stored.dtype) {
    std::ifstream(file.path(), std::ios::binary)
        .seekg(stored.begin)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, Dims(stored.shape), *stored.dtype);
  EXPECT_TRUE(file.Read(stored.name, out).ok());
  if (!bytes.empty()) std::memcpy(bytes.data(), out.raw_data(), bytes.size());
  return bytes;
}

TEST(SafetensorsFile, GivesTheBytesThatPythonFindsInGoldenFiles) {
  // Computed with Python's json and struct: h = h * 31 + fnv1a(bytes of tensor), tensors by name.
  const struct {
    const char* file;
    size_t tensors;
    uint64_t hash;
  } rows[] = {
      {"llama/gqa_tied/data.safetensors", 3, 0x94f9f3c19e7eceebu},
      {"llama/gqa_tied/expected_bf16.safetensors", 3, 0xbf77a62c91b723afu},
      {"llama/gqa_tied/expected_f32.safetensors", 3, 0xe70ee8aade616bfdu},
      {"llama/gqa_tied/expected_f64.safetensors", 43, 0x6236d87864b4257bu},
      {"llama/gqa_tied/model.safetensors", 20, 0xac33ec82abac2a6au},
      {"llama/llama3_rope_bias/data.safetensors", 3, 0x8ccca8e0a45a853bu},
      {"llama/llama3_rope_bias/expected_bf16.safetensors", 3, 0xc4bb0798fee5a359u},
      {"llama/llama3_rope_bias/expected_f32.safetensors", 3, 0x94e36b84a20e278eu},
      {"llama/llama3_rope_bias/expected_f64.safetensors", 41, 0xd18370c5b2cd2a43u},
      {"llama/llama3_rope_bias/model.safetensors", 19, 0x412385e36a39060bu},
      {"llama/plain/data.safetensors", 3, 0xa1c9dfe1d339e170u},
      {"llama/plain/expected_bf16.safetensors", 3, 0xbb3fb48982a0af2fu},
      {"llama/plain/expected_f32.safetensors", 3, 0xed4789e6bdb809d9u},
      {"llama/plain/expected_f64.safetensors", 45, 0xe1e4d39c6a3ca09du},
      {"llama/plain/model.safetensors", 21, 0x36addd6aee66c035u},
      {"ops/tensors.safetensors", 1208, 0x6561524f758782c6u},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.file);
    const SafetensorsFile file = OpenOrDie(Golden(row.file));
    EXPECT_EQ(file.tensors().size(), row.tensors);
    std::vector<std::string> names = file.Names();
    std::sort(names.begin(), names.end());
    uint64_t hash = 0;
    for (const std::string& name : names) {
      const StoredTensor* stored = file.Find(name);
      ASSERT_NE(stored, nullptr) << name;
      hash = hash * 31 + Fnv1a(TensorBytes(file, *stored));
    }
    EXPECT_EQ(hash, row.hash);
  }
}

TEST(SafetensorsFile, GivesTheElementsThatPythonFindsInGoldenFiles) {
  ExecutionContext context;
  const SafetensorsFile model = OpenOrDie(Golden("llama/plain/model.safetensors"));
  EXPECT_EQ(model.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(model.Names().front(), "lm_head.weight");
  const StoredTensor* stored = model.Find("model.layers.1.mlp.down_proj.weight");
  ASSERT_NE(stored, nullptr);
  EXPECT_EQ(stored->file_dtype, "F32");
  EXPECT_EQ(stored->ToString(), "f32[32,88]");
  Tensor down = Tensor::Empty(context, {32, 88}, DType::kF32);
  ASSERT_TRUE(model.Read(stored->name, down).ok());
  EXPECT_EQ(down.data<float>()[0], -0.331603646f);
  EXPECT_EQ(down.data<float>()[3 * 88 + 44], 0.0963594541f);
  EXPECT_EQ(down.data<float>()[31 * 88 + 87], -0.233475894f);

  const SafetensorsFile data = OpenOrDie(Golden("llama/plain/data.safetensors"));
  Tensor targets = Tensor::Empty(context, {1, 1, 2}, DType::kI64);
  const Box last{{9, 3, 14}, {10, 4, 16}};
  ASSERT_TRUE(data.ReadBox("targets", last, targets).ok());
  EXPECT_EQ(targets.data<int64_t>()[1], 7);

  const SafetensorsFile expected = OpenOrDie(Golden("llama/plain/expected_f64.safetensors"));
  Tensor logit = Tensor::Empty(context, {1, 1, 1}, DType::kF64);
  ASSERT_TRUE(expected.ReadBox("logits", {{2, 7, 13}, {3, 8, 14}}, logit).ok());
  EXPECT_EQ(logit.Item(), 0.456423320532693);
}

// ---- what is listed -----------------------------------------------------------------------------

TEST(SafetensorsFile, ListsTensorsInTheOrderOfTheirBytesWhateverTheOrderOfTheHeader) {
  const std::string header = R"({"b":{"dtype":"I64","shape":[1],"data_offsets":[4,12]},)"
                             R"("__metadata__":{"who":"\u00e9\n","":"empty"},)"
                             R"("none":{"shape":[3,0],"data_offsets":[4,4],"dtype":"F64"},)"
                             R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )";
  const SafetensorsFile file = OpenOrDie(WriteTestFile(
      "x.safetensors",
      SafetensorsBytes(header, BytesOf<float>({2.5f}) + BytesOf<int64_t>({-7'000'000'000}))));
  EXPECT_THAT(file.Names(), ElementsAre("a", "none", "b"));
  EXPECT_EQ(file.metadata(),
            (std::map<std::string, std::string>{{"who", "\xc3\xa9\n"}, {"", "empty"}}));
  EXPECT_EQ(file.Find("c"), nullptr);
  EXPECT_EQ(file.Find("__metadata__"), nullptr);
  EXPECT_EQ(file.Find("b")->begin, static_cast<int64_t>(8 + header.size() + 4));
  EXPECT_EQ(file.Find("b")->Bytes(), 8);

  ExecutionContext context;
  Tensor scalar = Tensor::Empty(context, {}, DType::kF32);
  ASSERT_TRUE(file.Read("a", scalar).ok());
  EXPECT_EQ(scalar.Item(), 2.5);
  Tensor none = Tensor::Empty(context, {3, 0}, DType::kF64);
  EXPECT_TRUE(file.Read("none", none).ok());
  Tensor b = Tensor::Empty(context, {1}, DType::kI64);
  ASSERT_TRUE(file.Read("b", b).ok());
  EXPECT_EQ(b.data<int64_t>()[0], -7'000'000'000);
}

TEST(SafetensorsFile, OpensFilesWithoutTensors) {
  for (const char* header :
       {"{}", "{ }  \n", R"({"__metadata__":{}})", R"({"__metadata__":null})"}) {
    EXPECT_TRUE(HeaderStatus(header, 0).ok()) << header;
  }
}

// It was refused, although the format's own library reads it.
TEST(SafetensorsFile, TakesMetadataThatIsNullForNone) {
  SafetensorsBuilder builder;
  builder.Add("a", "F32", {1}, BytesOf<float>({-3}));
  const std::string header =
      R"({"__metadata__":null,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const SafetensorsFile file =
      OpenOrDie(WriteTestFile("x.safetensors", SafetensorsBytes(header, builder.data())));
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_EQ(file.Names(), (std::vector<std::string>{"a"}));
}

TEST(SafetensorsFile, ListsDTypesThatItCannotReadAndSaysSoWhenTheyAreRead) {
  const struct {
    const char* dtype;
    int64_t bytes_of_8;
  } rows[] = {{"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},
              {"F8_E5M2", 8},     {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16},
              {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"U32", 32},    {"U64", 64}, {"C64", 64}};
  SafetensorsBuilder builder;
  for (const auto& row : rows) {
    builder.Add(row.dtype, row.dtype, {2, 4}, std::string(row.bytes_of_8, '\1'));
  }
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {2, 4}, DType::kF32);
  Tensor nothing = Tensor::Empty(context, {0, 4}, DType::kF32);
  for (const auto& row : rows) {
    const StoredTensor* stored = file.Find(row.dtype);
    ASSERT_NE(stored, nullptr) << row.dtype;
    EXPECT_FALSE(stored->dtype.has_value());
    EXPECT_EQ(stored->Bytes(), row.bytes_of_8);
    EXPECT_EQ(stored->ToString(), std::string(row.dtype) + "[2,4]");
    ExpectError(file.Read(row.dtype, out), Code::kUnimplemented,
                {file.path(), absl::StrCat("tensor '", row.dtype, "'"), row.dtype});
    // All ranks fail alike, also the one whose box is empty.
    ExpectError(file.ReadBox(row.dtype, {{2, 0}, {2, 4}}, nothing), Code::kUnimplemented, {});
  }
}

TEST(SafetensorsFile, ListsTensorsOfManyDimsAndSaysSoWhenTheyAreRead) {
  SafetensorsBuilder builder;
  builder.Add("nine", "F32", {1, 1, 1, 1, 1, 1, 1, 1, 2}, BytesOf<float>({1, 2}));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  EXPECT_EQ(file.Find("nine")->shape.size(), 9u);
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {2}, DType::kF32);
  ExpectError(file.Read("nine", out), Code::kUnimplemented, {"'nine'", "9 dims"});
}

// ---- malformed files ----------------------------------------------------------------------------

TEST(SafetensorsFile, RefusesMalformedHeadersAndNamesFileAndTensor) {
  const std::string deep(1000, '[');
  const struct {
    std::string header;
    size_t data_bytes;
    std::string problem;
  } rows[] = {
      {"", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"\xef\xbb\xbf{}", 0, "does not begin with '{'"},
      {"{", 0, "invalid JSON"},
      {"{}x", 0, "invalid JSON"},
      {"{}{}", 0, "invalid JSON"},
      {"{,}", 0, "invalid JSON"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},})", 4, "invalid JSON"},
      {"{}/* comment */", 0, "invalid JSON"},
      {std::string("{}\0 more", 8), 0, "NUL at byte 2"},
      {std::string("{\"a\0\":1}", 8), 0, "NUL at byte 3"},
      {"{\"\xff\":{}}", 0, "invalid JSON"},
      {"{\"\xc0\x80\":{}}", 0, "invalid JSON"},
      {R"({"\ud800":{}})", 0, "invalid JSON"},
      {"{\"a\nb\":{}}", 0, "invalid JSON"},
      {Entry("a", R"("x":)" + deep), 0, "levels deep"},
      {R"({"a":)" + deep, 0, "'a' should be an object, but is an array"},
      {R"({"a":1})", 0, "'a' should be an object, but is a non-negative integer"},
      {R"({"a":null})", 0, "'a' should be an object, but is null"},
      {R"({"__metadata__":[]})", 0, "'__metadata__' should be an object, but is an array"},
      {R"({"__metadata__":""})", 0, "'__metadata__' should be an object, but is a string"},
      {R"({"__metadata__":0})", 0, "'__metadata__' should be an object, but is a non-neg"},
      {R"({"__metadata__":false})", 0, "'__metadata__' should be an object, but is a boolean"},
      {R"({"__metadata__ ":null})", 0, "'__metadata__ ' should be an object, but is null"},
      {R"({"__metadata__":null,"__metadata__":null})", 0, "'__metadata__' appears twice"},
      {R"({"__metadata__":{"a":null}})", 0, "__metadata__ 'a' should be a string, but is null"},
      // The format's own library reads these two.
      {R"({"a":["F32",[1],[0,4]]})", 4, "'a' should be an object, but is an array"},
      {Entry("a", R"("dtype":{"F32":null},"shape":[1],"data_offsets":[0,4])"), 4,
       "tensor 'a': dtype should be a string"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__ 'a' should be a string"},
      {R"({"__metadata__":{"a":{"b":""}}})", 0, "__metadata__ 'a' should be a string"},
      {R"({"__metadata__":{"a":"","a":""}})", 0, "the key 'a' appears twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "the key '__metadata__' appears twice"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "the key 'a' appears twice"},
      {Entry("a", R"("dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4])"), 4,
       "the key 'shape' appears twice"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":{"y":1,"y":1})"), 4,
       "the key 'y' appears twice"},
      {Entry("a", R"("shape":[1],"data_offsets":[0,4])"), 4, "tensor 'a': no dtype"},
      {Entry("a", R"("dtype":"F32","data_offsets":[0,4])"), 4, "tensor 'a': no shape"},
      {Entry("a", R"("dtype":"F32","shape":[1])"), 4, "tensor 'a': no data_offsets"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[4])"), 4,
       "tensor 'a': no data_offsets"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"), 4, "more than 2 items"},
      {Entry("a", R"("dtype":1,"shape":[1],"data_offsets":[0,4])"), 4,
       "tensor 'a': dtype should be a string"},
      {Entry("a", R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])"), 4,
       "tensor 'a': dtype should be a string"},
      {Entry("a", R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"), 4,
       "tensor 'a': unknown dtype 'f32'"},
      {Entry("a", R"("dtype":"","shape":[1],"data_offsets":[0,4])"), 4, "unknown dtype ''"},
      {Entry("a", R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), 4,
       "tensor 'a': shape should be an array"},
      {Entry("a", R"("dtype":"F32","shape":{"0":1},"data_offsets":[0,4])"), 4,
       "tensor 'a': shape should be an array"},
      {Entry("a", R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), 4,
       "tensor 'a': an item of shape should be a non-negative integer, but is an array"},
      {Entry("a", R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), 4, "an item of shape"},
      {Entry("a", R"("dtype":"F32","shape":[true],"data_offsets":[0,4])"), 4, "an item of shape"},
      {Entry("a", R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "an item of shape"},
      {Entry("a", R"("dtype":"F32","shape":[-0],"data_offsets":[0,0])"), 0, "an item of shape"},
      {Entry("a", R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, "an item of shape"},
      {Entry("a", R"("dtype":"F32","shape":[1e0],"data_offsets":[0,4])"), 4, "an item of shape"},
      {Entry("a", R"("dtype":"F32","shape":[1e999],"data_offsets":[0,4])"), 4, "invalid JSON"},
      {Entry("a", R"("dtype":"F32","shape":[01],"data_offsets":[0,4])"), 4, "invalid JSON"},
      {Entry("a", R"("dtype":"F32","shape":[18446744073709551617],"data_offsets":[0,4])"), 4,
       "an item of shape"},
      {Entry("a", R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"), 4,
       "beyond 2^63 - 1"},
      {Entry("a", R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
       "shape [4294967296,4294967296] is too large"},
      {Entry("a", R"("dtype":"F32","shape":[2305843009213693953],"data_offsets":[0,4])"), 4,
       "is too large"},
      {Entry("a", R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"), 0,
       "is too large"},
      {Entry("a",
             absl::StrCat(R"("dtype":"U8","shape":[)", absl::StrJoin(std::vector<int>(65, 1), ","),
                          R"(],"data_offsets":[0,1])")),
       1, "more than 64 dims"},
      {Entry("a", R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1,
       "does not end at a whole byte"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "end before they begin"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,-4])"), 4,
       "an item of data_offsets should be a non-negative integer"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4.0])"), 4,
       "an item of data_offsets"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":"0,4")"), 4,
       "data_offsets should be an array"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,3])"), 3,
       "tensor 'a': data_offsets [0,3] hold 3 bytes, but f32[1] takes 4"},
      {Entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 4,
       "tensor 'a': its bytes end at"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 5, "but the file ends at"},
      {Entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8, "leaves a hole"},
      {Entry("a", R"("dtype":"U8","shape":[0],"data_offsets":[7,7])"), 0, "its bytes end at"},
      {Entry("a", R"("dtype":"U8","shape":[1],)"
                  R"("data_offsets":[9223372036854775806,9223372036854775807])"),
       1, "are too large"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12, "tensor 'b': its bytes overlap those of tensor 'a'"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8, "tensor 'b': its bytes overlap those of tensor 'a'"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
       8, "tensor 'b': its bytes overlap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "tensor 'b': its bytes begin at"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.header.substr(0, 200));
    ExpectError(HeaderStatus(row.header, row.data_bytes), Code::kInvalidArgument,
                {TestFolder() + "/x.safetensors': ", row.problem});
  }
}

TEST(SafetensorsFile, IgnoresFieldsThatTheFormatDoesNotHaveAsItsOwnLibraryDoes) {
  EXPECT_TRUE(HeaderStatus(Entry("a", R"("x":[1.5,{"shape":["no"]}],"dtype":"F32","shape":[1],)"
                                      R"("y":-1,"data_offsets":[0,4])"),
                           4)
                  .ok());
}

TEST(SafetensorsFile, MessagesStayOneReadableLineWhateverANameHolds) {
  const std::string name = R"(\u0000\n\u001b[2J)" + std::string(100'000, 'x');
  const absl::Status status = HeaderStatus(Entry(name, "\"dtype\":1"), 0);
  ExpectError(status, Code::kInvalidArgument, {R"('\x00\n\x1b[2Jxxx)"});
  EXPECT_LT(status.message().size(), 1000u);
}

TEST(SafetensorsFile, RefusesHeaderLengthsThatDoNotFitTheFile) {
  const struct {
    std::string bytes;
    std::string problem;
  } rows[] = {
      {"", "0 bytes are too few"},
      {"1234567", "7 bytes are too few"},
      {BytesOf<uint64_t>({0}), "does not begin with '{'"},
      {BytesOf<uint64_t>({1}), "a header of 1 bytes in a file of 8"},
      {BytesOf<uint64_t>({3}) + "{}", "a header of 3 bytes in a file of 10"},
      {BytesOf<uint64_t>({100'000'000}) + "{}", "a header of 100000000 bytes in a file of 10"},
      {BytesOf<uint64_t>({100'000'001}) + "{}", "more than the limit of 100000000"},
      {BytesOf<uint64_t>({uint64_t{1} << 63}) + "{}", "more than the limit"},
      {BytesOf<uint64_t>({~uint64_t{0}}) + "{}", "more than the limit"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
  };
  for (const auto& row : rows) {
    ExpectError(OpenStatus(WriteTestFile("x.safetensors", row.bytes)), Code::kInvalidArgument,
                {TestFolder() + "/x.safetensors': ", row.problem});
  }
}

TEST(SafetensorsFile, EveryTruncationOfAFileIsRefused) {
  SafetensorsBuilder builder;
  builder.Add("a", "F32", {2}, BytesOf<float>({1, 2})).Add("b", "BOOL", {3}, std::string(3, '\1'));
  const std::string whole = builder.Build();
  EXPECT_TRUE(OpenStatus(WriteTestFile("x.safetensors", whole)).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(OpenStatus(WriteTestFile("x.safetensors", whole.substr(0, size))).ok()) << size;
  }
}

TEST(SafetensorsFile, NamesPathsThatAreNoReadableFile) {
  const std::string folder = TestFolder();
  ExpectError(OpenStatus(folder + "/none"), Code::kNotFound, {folder + "/none': cannot open"});
  ExpectError(OpenStatus(folder), Code::kInvalidArgument, {folder + "': a directory"});
  ExpectError(OpenStatus(""), Code::kNotFound, {});
  ExpectError(OpenStatus(std::string("a\0b", 3)), Code::kInvalidArgument, {"NUL"});
  ExpectError(OpenStatus("/dev/zero"), Code::kInvalidArgument, {"not a regular file"});
  // Opening a pipe that nobody writes to would wait for ever.
  const std::string pipe = folder + "/pipe";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ExpectError(OpenStatus(pipe), Code::kInvalidArgument, {pipe + "': not a regular file"});
  if (::geteuid() == 0) return;  // May read everything.
  const std::string secret = WriteTestFile("secret", SafetensorsBytes("{}", ""));
  ::chmod(secret.c_str(), 0);
  ExpectError(OpenStatus(secret), Code::kPermissionDenied, {secret});
}

}  // namespace
}  // namespace shardmesh
