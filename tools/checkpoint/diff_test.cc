// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/diff.h"

#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/export.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/tools/checkpoint/testing/sample_checkpoints.h"

namespace shardmesh::checkpoint::tool {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::InFolder;
using ::testing::Not;
using testing::OnRanks;
using testing::SampleState;
using testing::SampleValue;
using testing::SaveSample;
using testing::Tool;
using testing::ToolResult;

const std::string kDcp = "tests/testdata/golden/dcp/";

ToolResult DiffAB(std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), {"diff", InFolder("a"), InFolder("b")});
  return Tool(flags);
}

std::string WriteFloats(const std::string& name, const std::vector<float>& values) {
  SafetensorsBuilder builder;
  builder.Add("x", "F32", {static_cast<int64_t>(values.size())}, BytesOf<float>(values));
  return WriteTestFile(name, builder.Build());
}

TEST(Diff, FindsNothingBetweenTheMeshesOfOneState) {
  const std::vector<MeshShape> meshes = {
      {{"dp", 1}}, {{"dp", 3}}, {{"dp", 5}}, {{"dp", 2}, {"tp", 3}}, {{"tp", 2}, {"dp", 2}}};
  for (size_t i = 0; i < meshes.size(); ++i) SaveSample(InFolder(absl::StrCat(i)), meshes[i]);
  for (size_t i = 0; i < meshes.size(); ++i) {
    const ToolResult result = Tool({"diff", InFolder("1"), InFolder(absl::StrCat(i))});
    EXPECT_EQ(result.code, kExitOk) << result.out << result.err;
    EXPECT_EQ(result.out, "no difference; 10 tensors compared, 1.1 KiB\n");
  }
}

TEST(Diff, FindsEachElementThatDiffers) {
  SaveSample(InFolder("a"), {{"dp", 3}});
  SaveSample(InFolder("b"), {{"dp", 2}, {"tp", 2}}, [](const std::string& name, int64_t index) {
    const double value = SampleValue(name, index);
    if (name == "embed.weight" && (index == 26 || index == 88)) return value + 0.5;
    if (name == "layers.0.mask" && index == 33) return 1 - value;
    if (name == "layers.0.norm" && index == 6) return -value;
    if (name == "ids" && index == 44) return value - 3;
    if (name == "scalar") return value + 1;
    return value;
  });
  const ToolResult result = DiffAB();
  EXPECT_EQ(result.code, kExitFound) << result.err;
  // embed.weight: a[3,5] is -48 + 26 + 12.
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("values: embed.weight F32[13,7]: 2 of 91 elements differ, max abs 0.5, max "),
            HasSubstr("first at [3,5]: -10 and -9.5\n"),
            HasSubstr("values: layers.0.mask BOOL[2,17]: 1 of 34 elements differ, max abs 1, max"),
            HasSubstr("first at [1,16]: 1 and 0\n"),
            HasSubstr("values: layers.0.norm BF16[7]: 1 of 7 elements differ, max abs 58, max rel "
                      "2; first at [6]: -29 and 29\n"),
            HasSubstr("values: ids I64[9,5]: 1 of 45 elements differ, max abs 3, max rel 0.75; "
                      "first at [8,4]: -1 and -4\n"),
            HasSubstr("values: scalar F64[]: 1 of 1 elements differ"), Not(HasSubstr("w64")),
            HasSubstr("\n5 differences; 10 tensors compared, ")));
  // The other way round.
  EXPECT_THAT(Tool({"diff", InFolder("b"), InFolder("a")}).out,
              HasSubstr("max rel 2; first at [6]: 29 and -29\n"));
}

TEST(Diff, IsTheSameThroughAnyBuffer) {
  SaveSample(InFolder("a"), {{"dp", 3}});
  SaveSample(InFolder("b"), {{"dp", 2}}, [](const std::string& name, int64_t index) {
    return SampleValue(name, index) + (name != "layers.0.mask" && index % 5 == 4 ? 1 : 0);
  });
  const std::string expected = DiffAB().out;
  EXPECT_THAT(expected, HasSubstr("embed.weight F32[13,7]: 18 of 91"));
  for (const int64_t buffer_bytes : {1, 24, 100}) {
    std::ostringstream out, err;
    Console console = {out, err, false};
    const auto count = Diff(InFolder("a"), InFolder("b"), {.buffer_bytes = buffer_bytes}, console);
    EXPECT_TRUE(count.ok()) << count.status();
    EXPECT_EQ(out.str(), expected) << buffer_bytes;
  }
}

TEST(Diff, NamesWhatOnlyOneHasAndWhatIsOfAnotherKind) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    ExecutionContext& context = mesh.context();
    StateDict a, b;
    a.Add("same", Tensor::FromValues<float>(context, {2}, {1, 2}));
    b.Add("same", Tensor::FromValues<float>(context, {2}, {1, 2}));
    a.Add("gone", Tensor::FromValues<float>(context, {1}, {1}));
    b.Add("new", Tensor::FromValues<int32_t>(context, {1}, {1}));
    a.Add("shape", Tensor::FromValues<float>(context, {2, 3}, {1, 2, 3, 4, 5, 6}));
    b.Add("shape", Tensor::FromValues<float>(context, {3, 2}, {1, 2, 3, 4, 5, 6}));
    a.Add("dtype", Tensor::FromValues<float>(context, {2}, {1, 2.5f}));
    b.Add("dtype", Tensor::FromValues<double>(context, {2}, {1, 2}));
    a.Add("step", int64_t{1});
    b.Add("step", 1.0);
    a.Add("note", std::string("a"));
    b.Add("list", StateList{{int64_t{1}}});
    a.Add("nan", std::numeric_limits<double>::quiet_NaN());
    b.Add("nan", -std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(Save(InFolder("a"), a, {.sync = false, .ranks = &mesh.WorldGroup()}),
              absl::OkStatus());
    EXPECT_EQ(Save(InFolder("b"), b, {.sync = false, .ranks = &mesh.WorldGroup()}),
              absl::OkStatus());
  });
  ToolResult result = DiffAB();
  EXPECT_EQ(result.code, kExitFound) << result.err;
  EXPECT_EQ(result.out,
            "only in A: gone F32[1]\n"
            "only in B: new I32[1]\n"
            "dtype: dtype is F32[2] in A and F64[2] in B\n"
            "values: dtype F32[2]: 1 of 2 elements differ, max abs 0.5, max rel 0.2; first at [1]: "
            "2.5 and 2\n"
            "shape: shape is F32[2,3] in A and F32[3,2] in B\n"
            "only in A: note = 'a'\n"
            "plain value: step is i64 1 in A and f64 1 in B\n"
            "only in B: list = [1]\n"
            "8 differences; 3 tensors compared, 40 B\n");
  result = DiffAB({"--names=dtype,same", "--ignore_dtype", "--rtol=0.3", "--all"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.out,
            "equal: dtype F32[2], max abs 0.5, max rel 0.2\n"
            "equal: same F32[2]\n"
            "no difference; 2 tensors compared, 16 B\n");
}

TEST(Diff, ComparesFormats) {
  SaveSample(InFolder("a"), {{"dp", 3}});
  OnRanks({{"tp", 2}}, [](const DeviceMesh& mesh) {
    ExportOptions options;
    options.max_file_bytes = 300;
    EXPECT_EQ(ExportHuggingFace(InFolder("b"), SampleState(mesh), options), absl::OkStatus());
    // Under the other name of a tied tensor.
    StateDict head;
    head.Add("head.weight", SampleState(mesh).Find("embed.weight")->value);
    EXPECT_EQ(ExportHuggingFace(InFolder("head"), head), absl::OkStatus());
  });
  EXPECT_EQ(DiffAB().out, "no difference; 10 tensors compared, 1.1 KiB\n");
  ToolResult result = Tool({"diff", InFolder("a"), InFolder("head"), "--names=head", "--all"});
  EXPECT_EQ(result.code, kExitOk) << result.out;
  EXPECT_THAT(result.out, HasSubstr("equal: embed.weight = head.weight F32[13,7]\n"));
  result = Tool({"diff", InFolder("head"), InFolder("a"), "--names=head", "--all"});
  EXPECT_EQ(result.code, kExitOk) << result.out;
  EXPECT_THAT(result.out, HasSubstr("equal: head.weight = embed.weight F32[13,7]\n"));
  ASSERT_EQ(
      Tool({"convert", InFolder("a"), InFolder("part"), "--names=layers.0", "--add_prefix=layers."})
          .code,
      kExitOk);
  const std::string names = "--names=layers.layers.0,layers.0";
  EXPECT_EQ(Tool({"diff", InFolder("part"), InFolder("a"), names}).code, kExitFound);
  result = Tool({"diff", InFolder("part"), InFolder("a"), names, "--strip_prefix=layers."});
  EXPECT_EQ(result.out, "no difference; 2 tensors compared, 48 B\n");
  for (const char* name : {"fsdp", "fsdp_tp"}) {
    // One rank has computed the whole ones, and rounds elsewhere.
    const std::string whole = kDcp + name + "/whole/expected.safetensors";
    result = Tool({"diff", kDcp + name, whole, "--rtol=1e-5", "--atol=1e-7"});
    EXPECT_EQ(result.code, kExitOk) << result.out << result.err;
    EXPECT_EQ(Tool({"diff", kDcp + name, whole}).code, kExitFound);
  }
}

TEST(Diff, TakesNaNsAndZerosByTheirValueUnlessBitsAreAskedFor) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string a = WriteFloats("a.safetensors", {nan, 0.0f, 1});
  const std::string b = WriteFloats("b.safetensors", {-nan, -0.0f, 1});
  const std::string c = WriteFloats("c.safetensors", {nan, nan, 1});
  EXPECT_EQ(Tool({"diff", a, b}).code, kExitOk);
  const ToolResult bits = Tool({"diff", "--bits", a, b});
  EXPECT_EQ(bits.code, kExitFound);
  EXPECT_THAT(bits.out, HasSubstr("2 of 3 elements differ, max abs 0, max rel 0; first at [0]"));
  const ToolResult nans = Tool({"diff", "--atol=100", a, c});
  EXPECT_EQ(nans.code, kExitFound);
  EXPECT_THAT(nans.out,
              HasSubstr("1 of 3 elements differ, max abs 0, max rel 0, 1 are NaN in one"));
}

TEST(Diff, ComparesOtherDTypesByTheirBytes) {
  SafetensorsBuilder a, b;
  a.Add("q", "F8_E4M3", {2, 2}, "abcd").Add("u", "U8", {2}, "xy");
  b.Add("q", "F8_E4M3", {2, 2}, "abxy").Add("u", "U8", {2}, "xy");
  const ToolResult result = Tool({"diff", WriteTestFile("a.safetensors", a.Build()),
                                  WriteTestFile("b.safetensors", b.Build())});
  EXPECT_EQ(result.code, kExitFound) << result.err;
  EXPECT_EQ(result.out,
            "values: q F8_E4M3[2,2]: 2 of 4 bytes differ\n"
            "1 difference; 2 tensors compared, 6 B\n");
}

TEST(Diff, EndsWithAnErrorWhereItCannotCompare) {
  const std::string a = WriteFloats("a.safetensors", {1});
  EXPECT_EQ(Tool({"diff", a, InFolder("none")}).code, kExitError);
  ToolResult result = Tool({"diff", a, a, "--bits", "--rtol=1"});
  EXPECT_EQ(result.code, kExitError);
  EXPECT_THAT(result.err, HasSubstr("--bits and a tolerance"));
  SafetensorsBuilder builder;
  builder.Add("x", "BOOL", {1}, "\x02");
  const std::string bad = WriteTestFile("bad.safetensors", builder.Build());
  result = Tool({"diff", bad, bad});
  EXPECT_EQ(result.code, kExitError);
  EXPECT_THAT(result.err, AllOf(HasSubstr("bad.safetensors"), HasSubstr("not a valid bool")));
}

}  // namespace
}  // namespace shardmesh::checkpoint::tool
