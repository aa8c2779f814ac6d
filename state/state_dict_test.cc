// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/state/state_dict.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh {
namespace {

using shardmesh::testing::ErrorOf;
using shardmesh::testing::OnMesh;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> NamesOf(const StateDict& state) {
  std::vector<std::string> names;
  for (const StateEntry& entry : state.entries()) {
    for (const std::string& name : AllNames(entry)) names.push_back(name);
  }
  return names;
}

TEST(StateDict, KeepsTheOrderAndRefusesNamesThatAreThereOrMalformed) {
  StateDict state;
  state.Add("b.c", int64_t{3});
  state.Add("a", 0.5);
  StateEntry tied;
  tied.name = "x.weight";
  tied.aliases = {"y.weight"};
  tied.value = std::string("text");
  state.Add(tied);
  EXPECT_THAT(NamesOf(state), ElementsAre("b.c", "a", "x.weight", "y.weight"));
  EXPECT_EQ(state.Find("y.weight"), state.Find("x.weight"));
  EXPECT_EQ(state.Find("z"), nullptr);
  EXPECT_THAT(ErrorOf([&] { state.Add("a", int64_t{1}); }), HasSubstr("'a' is there twice"));
  EXPECT_THAT(ErrorOf([&] { state.Add("y.weight", 1.0); }), HasSubstr("'y.weight' is there twice"));
  tied.name = "z";
  tied.aliases = {"z"};
  EXPECT_THAT(ErrorOf([&] { state.Add(tied); }), HasSubstr("'z' is there twice"));
  for (const char* name : {"", ".", ".a", "a.", "a..b"})
    EXPECT_THAT(ErrorOf([&] { state.Add(name, 1.0); }), HasSubstr("empty part")) << name;
  EXPECT_EQ(state.size(), 3u);
}

TEST(StateDict, ReadsAndWritesTheVariablesThatItIsBoundTo) {
  int64_t step = 3;
  double rate = 0.5;
  bool flag = false;
  std::string note = "first";
  StateDict state;
  state.Bind("step", &step);
  state.Bind("rate", &rate);
  state.Bind("flag", &flag);
  state.Bind("note", &note);
  state.Add("plain", int64_t{7});
  const StateDict copy = WithPrefix(state, "run");
  step = 9007199254740993;
  note = "second";
  EXPECT_EQ(copy.Integer("run.step"), 9007199254740993);
  EXPECT_EQ(copy.Text("run.note"), "second");
  EXPECT_EQ(copy.Number("run.rate"), 0.5);
  state.Assign(0, int64_t{-4});
  state.Assign(1, 0.25);
  state.Assign(2, true);
  state.Assign(3, std::string("third"));
  state.Assign(4, int64_t{8});
  EXPECT_EQ(step, -4);
  EXPECT_EQ(rate, 0.25);
  EXPECT_TRUE(flag);
  EXPECT_EQ(note, "third");
  EXPECT_EQ(state.Integer("plain"), 8);
  EXPECT_THAT(ErrorOf([&] { state.Assign(0, 0.5); }),
              HasSubstr("'step' is i64, and was given f64"));
  EXPECT_THAT(ErrorOf([&] { state.Integer("rate"); }), HasSubstr("'rate' is f64, expected i64"));
  EXPECT_THAT(ErrorOf([&] { state.Text("nothing"); }), HasSubstr("there is no 'nothing'"));
}

TEST(StateDict, IsViewedUnderOtherNames) {
  StateDict state;
  state.Add("model.a", int64_t{1});
  StateEntry tied;
  tied.name = "model.embed.weight";
  tied.aliases = {"model.head.weight"};
  tied.value = int64_t{2};
  state.Add(tied);
  state.Add("optim.step", int64_t{3});
  EXPECT_THAT(NamesOf(Below(state, "model")), ElementsAre("a", "embed.weight", "head.weight"));
  EXPECT_THAT(NamesOf(Below(state, "mod")), ElementsAre());
  const StateDict heads = Filter(
      state, [](std::string_view name) { return name.find("head") != std::string_view::npos; });
  EXPECT_THAT(NamesOf(heads), ElementsAre("model.head.weight"));
  const StateDict renamed =
      Rename(state, [](std::string_view name) { return "x." + std::string(name); });
  EXPECT_EQ(renamed.Integer("x.model.head.weight"), 2);
  EXPECT_THAT(ErrorOf([&] { Rename(state, [](std::string_view) { return std::string("same"); }); }),
              HasSubstr("'same' is there twice"));
  StateDict merged;
  merged.Merge("", state);
  merged.Merge("again", state);
  EXPECT_EQ(merged.size(), 6u);
  EXPECT_THAT(ErrorOf([&] { merged.Merge("again", state); }), HasSubstr("again.model.a"));
}

TEST(StateDict, SplitsAFusedTensorIntoRegions) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    StateDict state;
    state.Add("first", 1.0);
    state.Add("qkv.weight", Full(mesh, {9, 5}, DType::kF32, 1.0, {Shard(0)}));
    state.Add("count", int64_t{1});
    const StateDict split =
        SplitEntry(state, "qkv.weight", 0, {{"q.weight", 5}, {"k.weight", 3}, {"v.weight", 1}});
    EXPECT_THAT(NamesOf(split), ElementsAre("first", "q.weight", "k.weight", "v.weight", "count"));
    EXPECT_EQ(split.Find("k.weight")->region->ToString(), "[5:8, 0:5]");
    EXPECT_EQ(split.Find("k.weight")->Shape(), Dims({3, 5}));
    // Again, within a region.
    const StateDict parts = SplitEntry(split, "k.weight", 1, {{"k.a", 2}, {"k.b", 3}});
    EXPECT_EQ(parts.Find("k.b")->region->ToString(), "[5:8, 2:5]");
    EXPECT_THAT(ErrorOf([&] {
                  SplitEntry(state, "qkv.weight", 0, {{"q", 5}, {"k", 3}});
                }),
                HasSubstr("have 8 along dim 0, and it has 9"));
    EXPECT_THAT(ErrorOf([&] {
                  SplitEntry(state, "qkv.weight", 2, {{"q", 9}});
                }),
                HasSubstr("has no dim 2"));
    EXPECT_THAT(ErrorOf([&] {
                  SplitEntry(state, "count", 0, {{"q", 9}});
                }),
                HasSubstr("is i64, expected a tensor"));
    EXPECT_THAT(ErrorOf([&] {
                  SplitEntry(state, "none", 0, {{"q", 9}});
                }),
                HasSubstr("there is no 'none'"));
  });
}

TEST(StateDict, ShowsALineAnEntry) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    StateDict state;
    state.Add("w", Full(mesh, {9, 5}, DType::kF32, 1.0, {Shard(0)}));
    UnsetTensor unset;
    unset.mesh = mesh;
    unset.layout = Layout::Make(mesh.shape(), {Replicate()}, {3});
    state.Add("m", unset);
    state.Add("betas", StateList{{0.5, int64_t{2}}});
    EXPECT_EQ(state.ToString(),
              "w  f32[9,5] [S(0)] @ [dp=2]\nm  f32[3] [R] @ [dp=2] (unset)\nbetas  list of 2\n");
  });
}

}  // namespace
}  // namespace shardmesh
