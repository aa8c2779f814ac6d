// SPDX-License-Identifier: Apache-2.0
//
// States that are saved on one mesh and loaded on another, and what must be refused.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- tensors that a mesh splits in its own way -------------------------------------------------

struct Sample {
  std::string name;
  Dims shape;
  DType dtype;
};

// Prime, uneven, empty and scalar; every dtype.
const std::vector<Sample>& Samples() {
  static const std::vector<Sample>* const samples =
      new std::vector<Sample>{{"embed.weight", {13, 7}, DType::kF32},
                              {"w64", {5, 3, 2}, DType::kF64},
                              {"norm", {7}, DType::kBF16},
                              {"half", {11, 4}, DType::kF16},
                              {"ids", {9, 5}, DType::kI64},
                              {"counts", {3}, DType::kI32},
                              {"mask", {2, 17}, DType::kBool},
                              {"scalar", {}, DType::kF64},
                              {"none", {0, 4}, DType::kF32},
                              {"one", {1}, DType::kF32},
                              {"large", {300, 257}, DType::kF32}};
  return *samples;
}

// Differs for every element, and is exact in each dtype.
double ValueAt(const Sample& sample, int64_t index) {
  switch (sample.dtype) {
    case DType::kBool:
      return index % 3 == 0 ? 1 : 0;
    case DType::kBF16:
    case DType::kF16:
      return static_cast<double>(index % 97) - 48;
    default:
      return static_cast<double>(index) * (index % 2 == 0 ? 1 : -1) - 3;
  }
}

std::vector<double> Expected(const Sample& sample, const Box& box) {
  std::vector<double> values;
  Dims strides = Dims::Filled(sample.shape.size(), 1);
  for (int d = sample.shape.size() - 2; d >= 0; --d)
    strides[d] = strides[d + 1] * sample.shape[d + 1];
  const Dims extents = box.Extents();
  const int64_t count = box.NumElements();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, index = 0;
    for (int d = extents.size() - 1; d >= 0; --d) {
      index += (box.begin[d] + rest % extents[d]) * strides[d];
      rest /= extents[d];
    }
    values.push_back(ValueAt(sample, index));
  }
  return values;
}

Tensor LocalOf(ExecutionContext& context, const Sample& sample, const Box& box) {
  const std::vector<double> values = Expected(sample, box);
  Tensor tensor = Tensor::Empty(context, box.Extents(), sample.dtype);
  VisitDType(sample.dtype, [&]<typename T>() {
    T* const data = tensor.mutable_data<T>();
    for (size_t i = 0; i < values.size(); ++i) data[i] = static_cast<T>(values[i]);
  });
  return tensor;
}

// Layouts that follow from the tensor's number: every axis shards some dim or none, in any order.
Layout LayoutOf(const MeshShape& mesh, const Sample& sample, size_t number) {
  std::vector<Placement> placements;
  std::vector<int> order;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const int dims = sample.shape.size();
    const int choice = static_cast<int>((number + 2 * static_cast<size_t>(axis)) % 3);
    const bool shards = dims > 0 && choice < 2;
    placements.push_back(shards ? Placement(Shard(choice % dims)) : Placement(Replicate()));
    if (shards) order.push_back(axis);
  }
  if (number % 2 == 1) std::reverse(order.begin(), order.end());
  return Layout::Make(mesh, std::span<const Placement>(placements), sample.shape,
                      std::span<const int>(order));
}

// What a test saves and loads on one rank.
class Sampler {
 public:
  Sampler(const DeviceMesh& mesh, bool has_values) : mesh_(mesh) {
    for (size_t i = 0; i < Samples().size(); ++i) {
      const Sample& sample = Samples()[i];
      const Layout layout = LayoutOf(mesh.shape(), sample, i);
      const Box box = layout.LocalBox(mesh.coord());
      Tensor local = has_values ? LocalOf(mesh.context(), sample, box)
                                : Tensor::Empty(mesh.context(), box.Extents(), sample.dtype);
      tensors_.emplace_back(mesh, layout, std::move(local));
      state_.Add(sample.name, tensors_.back());
    }
    Tensor random = Tensor::FromValues<int64_t>(
        mesh.context(), {3}, {has_values ? INT64_MIN : 0, has_values ? 7 : 0, 0});
    state_.Add("random", random);
    step = has_values ? 9007199254740993 : 0;
    rate = has_values ? 0.1 : 0.0;
    state_.Bind("step", &step);
    state_.Bind("rate", &rate);
    state_.Add("limit", has_values ? std::numeric_limits<double>::infinity() : 0.0);
    state_.Add("note", std::string(has_values ? "a \"b\"\n\xc3\xa9" : ""));
    state_.Add("list", has_values
                           ? StateList{{int64_t{-1}, 0.5, std::string("x"), StateList{{true}}}}
                           : StateList{});
  }

  StateDict& state() { return state_; }
  void ExpectValues() const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Box box = tensors_[i].layout().LocalBox(mesh_.coord());
      EXPECT_EQ(tensors_[i].local().ToVector<double>(), Expected(Samples()[i], box))
          << Samples()[i].name << " " << tensors_[i].layout();
    }
    EXPECT_EQ(step, 9007199254740993);
    EXPECT_EQ(rate, 0.1);
    EXPECT_EQ(state_.Number("limit"), std::numeric_limits<double>::infinity());
    EXPECT_EQ(state_.Text("note"), "a \"b\"\n\xc3\xa9");
    EXPECT_EQ(std::get<Tensor>(state_.Find("random")->value).ToVector<int64_t>(),
              (std::vector<int64_t>{INT64_MIN, 7, 0}));
    const auto& list = std::get<StateList>(state_.Find("list")->value);
    ASSERT_EQ(list.items.size(), 4u);
    EXPECT_EQ(std::get<int64_t>(list.items[0]), -1);
    EXPECT_EQ(std::get<bool>(std::get<StateList>(list.items[3]).items[0]), true);
  }

  int64_t step = 0;
  double rate = 0;

 private:
  DeviceMesh mesh_;
  std::vector<DTensor> tensors_;
  StateDict state_;
};

const std::vector<MeshShape>& Meshes() {
  static const std::vector<MeshShape>* const meshes =
      new std::vector<MeshShape>{{{"dp", 1}},
                                 {{"dp", 2}},
                                 {{"tp", 2}},
                                 {{"dp", 3}},
                                 {{"dp", 5}},
                                 {{"tp", 5}},
                                 {{"dp", 2}, {"tp", 2}},
                                 {{"dp", 2}, {"tp", 3}},
                                 {{"dp", 3}, {"tp", 2}},
                                 {{"dp_replicate", 2}, {"dp", 2}},
                                 {{"dp_replicate", 2}, {"dp", 1}, {"tp", 2}},
                                 {{"dp_replicate", 2}, {"dp", 2}, {"tp", 2}}};
  return *meshes;
}

void OnRanks(const MeshShape& mesh, const std::function<void(const DeviceMesh&)>& fn) {
  EXPECT_EQ(RunRanks(static_cast<int>(mesh.NumRanks()),
                     [&](Communicator& world) { fn(DeviceMesh::Create(world, mesh)); }),
            absl::OkStatus())
      << mesh.ToString();
}

std::string PathOf(const std::string& name) { return absl::StrCat(TestFolder(), "/", name); }

TEST(SaveLoad, EveryMeshReadsWhatEveryMeshHasWritten) {
  for (size_t from = 0; from < Meshes().size(); ++from) {
    const std::string path = PathOf(absl::StrCat("from-", from));
    OnRanks(Meshes()[from], [&](const DeviceMesh& mesh) {
      Sampler run(mesh, /*has_values=*/true);
      EXPECT_EQ(Save(path, run.state()), absl::OkStatus());
    });
    EXPECT_EQ(Verify(path), absl::OkStatus());
    for (const MeshShape& to : Meshes()) {
      SCOPED_TRACE(absl::StrCat(Meshes()[from].ToString(), " to ", to.ToString()));
      OnRanks(to, [&](const DeviceMesh& mesh) {
        Sampler run(mesh, /*has_values=*/false);
        EXPECT_EQ(Load(path, run.state(), {.verify = true}), absl::OkStatus());
        run.ExpectValues();
      });
      if (HasFailure()) return;
    }
  }
}

TEST(SaveLoad, WritesEachByteOnceAndSharesThemBetweenReplicas) {
  const std::string path = PathOf("shared");
  OnRanks({{"dp_replicate", 4}}, [&](const DeviceMesh& mesh) {
    StateDict state;
    for (int i = 0; i < 3; ++i) {
      const Layout layout = Layout::Replicated(mesh.shape(), {1000, 251});
      state.Add(absl::StrCat("big", i),
                DTensor(mesh, layout, Tensor::Empty(mesh.context(), {1000, 251}, DType::kF32)));
    }
    for (int i = 0; i < 40; ++i) {
      const Layout layout = Layout::Replicated(mesh.shape(), {i % 7 + 1});
      state.Add(absl::StrCat("small", i),
                DTensor(mesh, layout, Tensor::Empty(mesh.context(), {i % 7 + 1}, DType::kF32)));
    }
    EXPECT_EQ(Save(path, state), absl::OkStatus());
  });
  const absl::StatusOr<Contents> contents = Contents::Open(path);
  ASSERT_TRUE(contents.ok()) << contents.status();
  std::vector<int64_t> bytes(contents->files.size());
  for (const StoredArray& array : contents->arrays) {
    for (const StoredPiece& piece : array.pieces) bytes[piece.file] += piece.bytes;
  }
  ASSERT_EQ(bytes.size(), 4u);
  const int64_t total = 3 * 1000 * 251 * 4 + 4 * (5 * 28 + 1 + 2 + 3 + 4 + 5);
  EXPECT_EQ(bytes[0] + bytes[1] + bytes[2] + bytes[3], total);
  for (int64_t of_rank : bytes) EXPECT_NEAR(of_rank, total / 4.0, 40);
}

TEST(SaveLoad, SplitsAndJoinsFusedWeights) {
  const std::string path = PathOf("fused");
  const Sample fused = {"qkv", {9, 5}, DType::kF32};
  OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, fused.shape);
    const DTensor x(mesh, layout, LocalOf(mesh.context(), fused, layout.LocalBox(mesh.coord())));
    StateDict state;
    state.Add("qkv", x);
    const StateDict parts = SplitEntry(state, "qkv", 0, {{"q", 5}, {"k", 3}, {"v", 1}});
    EXPECT_EQ(Save(path, parts), absl::OkStatus());
  });
  OnRanks({{"tp", 3}}, [&](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(mesh.shape(), {Shard(1)}, fused.shape);
    const Box box = layout.LocalBox(mesh.coord());
    const DTensor x(mesh, layout, Tensor::Empty(mesh.context(), box.Extents(), DType::kF32));
    StateDict state;
    state.Add("qkv", x);
    StateDict parts = SplitEntry(state, "qkv", 0, {{"q", 5}, {"k", 3}, {"v", 1}});
    EXPECT_EQ(Load(path, parts), absl::OkStatus());
    EXPECT_EQ(x.local().ToVector<double>(), Expected(fused, box));
  });
}

TEST(SaveLoad, CreatesTensorsWithoutValuesAndClearsWhatTheCheckpointLacks) {
  const std::string path = PathOf("unset");
  const Sample sample = {"m", {7, 3}, DType::kF64};
  OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, sample.shape);
    StateDict state;
    state.Add(
        "m", DTensor(mesh, layout, LocalOf(mesh.context(), sample, layout.LocalBox(mesh.coord()))));
    UnsetTensor unset;
    unset.mesh = mesh;
    unset.layout = layout;
    state.Add("not.saved", unset);
    EXPECT_EQ(Save(path, state), absl::OkStatus());
  });
  OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
    UnsetTensor unset;
    unset.mesh = mesh;
    unset.layout = Layout::Make(mesh.shape(), {Shard(1)}, sample.shape);
    unset.dtype = DType::kF64;
    unset.category = MemoryCategory::kOptimizer;
    StateDict state;
    DTensor made;
    StateEntry entry;
    entry.name = "m";
    entry.value = unset;
    entry.set = [&](StateValue value) { made = std::get<DTensor>(value); };
    state.Add(entry);
    bool is_cleared = false;
    entry.name = "v";
    entry.clear = [&] { is_cleared = true; };
    state.Add(entry);
    EXPECT_EQ(Load(path, state), absl::OkStatus());
    EXPECT_TRUE(is_cleared);
    ASSERT_TRUE(made);
    EXPECT_EQ(made.layout(), unset.layout);
    EXPECT_EQ(made.local().ToVector<double>(),
              Expected(sample, unset.layout.LocalBox(mesh.coord())));
    EXPECT_EQ(mesh.context().allocator()->stats(MemoryCategory::kOptimizer).bytes,
              made.local().Bytes());
  });
}

TEST(SaveLoad, OneProcessWithoutAMeshReadsPlainTensors) {
  const std::string path = PathOf("plain");
  OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
    Sampler run(mesh, /*has_values=*/true);
    EXPECT_EQ(Save(path, run.state()), absl::OkStatus());
  });
  ExecutionContext context;
  StateDict state;
  for (const Sample& sample : Samples())
    state.Add(sample.name, Tensor::Empty(context, sample.shape, sample.dtype));
  EXPECT_EQ(Load(path, state, {.allow_unexpected = true}), absl::OkStatus());
  for (size_t i = 0; i < Samples().size(); ++i) {
    EXPECT_EQ(std::get<Tensor>(state.entries()[i].value).ToVector<double>(),
              Expected(Samples()[i], Box::Whole(Samples()[i].shape)))
        << Samples()[i].name;
  }
}

TEST(SaveLoad, WorksWithoutAMeshAndWithoutTensors) {
  const std::string path = PathOf("alone");
  ExecutionContext context;
  StateDict state;
  int64_t step = 4;
  state.Bind("step", &step);
  EXPECT_EQ(Save(path + "-values", state), absl::OkStatus());
  const Tensor x = LocalOf(context, Samples()[1], Box::Whole(Samples()[1].shape));
  state.Add("x", x);
  EXPECT_EQ(Save(path, state), absl::OkStatus());
  EXPECT_EQ(Save(path + "-empty", StateDict()), absl::OkStatus());
  step = 0;
  StateDict other;
  other.Bind("step", &step);
  EXPECT_EQ(Load(path + "-values", other), absl::OkStatus());
  EXPECT_EQ(step, 4);
  const Tensor y = Tensor::Empty(context, x.shape(), x.dtype());
  other.Add("x", y);
  for (int again = 0; again < 2; ++again) EXPECT_EQ(Load(path, other), absl::OkStatus());
  EXPECT_EQ(y.ToVector<double>(), x.ToVector<double>());
  StateDict none;
  EXPECT_EQ(Load(path + "-empty", none), absl::OkStatus());
  EXPECT_FALSE(Load(path + "-empty", other).ok());
}

// ---- what must be refused ----------------------------------------------------------------------

TEST(Save, RefusesWhatIsThereAndReplacesItWhereAsked) {
  const std::string path = PathOf("there");
  OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    StateDict state;
    int64_t step = 1;
    state.Bind("step", &step);
    state.Add("x", Full(mesh, {3}, DType::kF32, 1.5, {Shard(0)}));
    EXPECT_EQ(Save(path, state), absl::OkStatus());
    step = 2;
    const absl::Status status = Save(path, state);
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 0: "), HasSubstr("there'")));
    EXPECT_EQ(Load(path, state), absl::OkStatus());
    EXPECT_EQ(step, 1);
    step = 3;
    EXPECT_EQ(Save(path, state, {.overwrite = true}), absl::OkStatus());
    step = 0;
    EXPECT_EQ(Load(path, state), absl::OkStatus());
    EXPECT_EQ(step, 3);
  });
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TestFolder())) {
    EXPECT_EQ(entry.path().filename(), "there");
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST(Save, IsRefusedOnAllRanksWhereOneDiffers) {
  const std::string folder = TestFolder() + "/";  // Which is no rank's to ask for.
  OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
    const int rank = mesh.LocalRank("dp");
    StateDict state;
    state.Add("x", Full(mesh, {3}, DType::kF32, 1.5, {Shard(0)}));
    state.Add("seed", int64_t{rank == 2 ? 5 : 4});
    const absl::Status status = Save(folder + "seeds", state);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("value 'seed' is another on rank 2 than on rank 0"));
    StateDict partial;
    partial.Add("sum", DTensor(mesh, Layout::Make(mesh.shape(), {Partial()}, {3}),
                               Tensor::Empty(mesh.context(), {3}, DType::kF32)));
    EXPECT_THAT(std::string(Save(folder + "partial", partial).message()),
                AllOf(HasSubstr("'sum'"), HasSubstr("is Partial")));
    StateDict good;
    good.Add("x", Full(mesh, {3}, DType::kF32, 1.5, {Shard(0)}));
    EXPECT_THAT(std::string(Save(folder + "no/such/parent", good).message()),
                HasSubstr("rank 0: cannot create directory"));
    EXPECT_EQ(Save(folder + "good", good), absl::OkStatus());
  });
  for (const auto& entry : std::filesystem::directory_iterator(TestFolder()))
    EXPECT_EQ(entry.path().filename(), "good");
}

TEST(Load, ListsAllThatDoesNotFitBeforeAnythingIsChanged) {
  const std::string path = PathOf("strict");
  OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    StateDict saved;
    saved.Add("same", Full(mesh, {3}, DType::kF32, 1.5, {Shard(0)}));
    saved.Add("extra", Full(mesh, {3}, DType::kF32, 1.5, {Shard(0)}));
    saved.Add("shape", Full(mesh, {3, 2}, DType::kF32, 1.5, {Shard(0)}));
    saved.Add("dtype", Full(mesh, {3}, DType::kF64, 1.5, {Shard(0)}));
    saved.Add("kind", int64_t{1});
    saved.Add("value", 0.5);
    EXPECT_EQ(Save(path, saved), absl::OkStatus());
    StateDict state;
    const DTensor same = Full(mesh, {3}, DType::kF32, -1.0, {Shard(0)});
    const DTensor dtype = Full(mesh, {3}, DType::kF32, -1.0, {Shard(0)});
    state.Add("same", same);
    state.Add("shape", Full(mesh, {2, 3}, DType::kF32, -1.0, {Shard(0)}));
    state.Add("dtype", dtype);
    state.Add("kind", 0.5);
    state.Add("absent", Full(mesh, {3}, DType::kF32, -1.0, {Shard(0)}));
    state.Add("absent.value", int64_t{3});
    const std::string message(Load(path, state).message());
    for (const char* part : {"missing: 'absent', 'absent.value'", "not expected: 'extra', 'value'",
                             "'shape' is [3,2], expected [2,3]", "'dtype' is F64, expected f32",
                             "'kind' is i64, expected f64"}) {
      EXPECT_THAT(message, HasSubstr(part));
    }
    EXPECT_EQ(FullTensor(same).ToVector<double>(), std::vector<double>(3, -1));
    StateDict some;
    some.Add("same", same);
    some.Add("dtype", dtype);
    some.Add("absent", int64_t{3});
    EXPECT_FALSE(Load(path, some, {.allow_unexpected = true, .allow_cast = true}).ok());
    EXPECT_EQ(
        Load(path, some, {.allow_missing = true, .allow_unexpected = true, .allow_cast = true}),
        absl::OkStatus());
    EXPECT_EQ(FullTensor(dtype).ToVector<double>(), std::vector<double>(3, 1.5));
    EXPECT_EQ(some.Integer("absent"), 3);
  });
}

TEST(Load, KnowsTiedTensorsByAnyName) {
  const std::string path = PathOf("tied"), twice = PathOf("twice"), differs = PathOf("differs");
  OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    StateEntry tied;
    tied.name = "embed";
    tied.aliases = {"head"};
    tied.value = Full(mesh, {5}, DType::kF32, 2.5, {Shard(0)});
    StateDict saved;
    saved.Add(tied);
    EXPECT_EQ(Save(path, saved), absl::OkStatus());
    StateDict alone;
    const DTensor head = Full(mesh, {5}, DType::kF32, 0.0, {Replicate()});
    alone.Add("head", head);
    EXPECT_EQ(Load(path, alone), absl::OkStatus());
    EXPECT_EQ(FullTensor(head).ToVector<double>(), std::vector<double>(5, 2.5));
    alone.Add("embed", Full(mesh, {5}, DType::kF32, 2.5, {Shard(0)}));
    EXPECT_EQ(Save(twice, alone), absl::OkStatus());
    EXPECT_EQ(Load(twice, saved), absl::OkStatus());
    StateDict other;
    other.Add("embed", Full(mesh, {5}, DType::kF32, 1.0, {Shard(0)}));
    other.Add("head", Full(mesh, {5}, DType::kF32, 2.0, {Shard(0)}));
    EXPECT_EQ(Save(differs, other), absl::OkStatus());
    EXPECT_THAT(std::string(Load(differs, saved).message()),
                HasSubstr("'embed' and 'head' are one tensor of the state, and differ"));
  });
}

// ---- damage -------------------------------------------------------------------------------------

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Verify, FindsAFlippedByteAnywhere) {
  const std::string path = PathOf("flipped");
  OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    StateDict state;
    for (const Sample& sample : Samples()) {
      if (sample.name == "large") continue;
      const Layout layout = LayoutOf(mesh.shape(), sample, 0);
      state.Add(
          sample.name,
          DTensor(mesh, layout, LocalOf(mesh.context(), sample, layout.LocalBox(mesh.coord()))));
    }
    EXPECT_EQ(Save(path, state), absl::OkStatus());
  });
  ASSERT_EQ(Verify(path), absl::OkStatus());
  int flips = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string file = entry.path().string(), bytes = ReadFile(file);
    for (size_t at = 0; at < bytes.size(); ++at) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      WriteFile(file, damaged);
      const absl::Status status = Verify(path);
      EXPECT_FALSE(status.ok()) << file << " byte " << at;
      EXPECT_THAT(std::string(status.message()), HasSubstr(entry.path().filename().string()));
      ++flips;
      if (HasFailure()) return;
    }
    WriteFile(file, bytes);
  }
  EXPECT_GT(flips, 3000);
  EXPECT_EQ(Verify(path), absl::OkStatus());
}

TEST(Load, RefusesFilesThatAreMissingCutOrOfAnotherSave) {
  const std::string path = PathOf("cut"), other = PathOf("other");
  for (const std::string& directory : {path, other}) {
    OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
      StateDict state;
      state.Add("x", Full(mesh, {directory == path ? 7 : 8, 3}, DType::kF32, 1.5, {Shard(0)}));
      EXPECT_EQ(Save(directory, state), absl::OkStatus());
    });
  }
  const auto load = [&] {
    std::string message;
    OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
      StateDict state;
      state.Add("x", Full(mesh, {7, 3}, DType::kF32, 0.0, {Shard(1)}));
      const absl::Status status = Load(path, state);
      if (mesh.LocalRank("dp") == 0) message = std::string(status.message());
    });
    return message;
  };
  EXPECT_EQ(load(), "");
  const std::string second = path + "/shard-00002-of-00003.safetensors";
  const std::string bytes = ReadFile(second);
  std::filesystem::remove(second);
  EXPECT_THAT(load(), HasSubstr("shard-00002-of-00003"));
  WriteFile(second, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(load(), HasSubstr("shard-00002-of-00003"));
  WriteFile(second, ReadFile(other + "/shard-00003-of-00003.safetensors"));
  EXPECT_THAT(load(), AllOf(HasSubstr("shard-00002-of-00003"), HasSubstr("the index says")));
  WriteFile(second, bytes);
  EXPECT_EQ(load(), "");
}

}  // namespace
}  // namespace shardmesh::checkpoint
