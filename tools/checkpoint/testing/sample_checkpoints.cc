// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/testing/sample_checkpoints.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::checkpoint::tool::testing {
namespace {

struct Sample {
  std::string name;
  Dims shape;
  DType dtype;
};

const std::vector<Sample>& Samples() {
  static const std::vector<Sample>* const samples =
      new std::vector<Sample>{{"embed.weight", {13, 7}, DType::kF32},
                              {"half", {11, 4}, DType::kF16},
                              {"ids", {9, 5}, DType::kI64},
                              {"layers.0.mask", {2, 17}, DType::kBool},
                              {"layers.0.norm", {7}, DType::kBF16},
                              {"layers.1.counts", {3}, DType::kI32},
                              {"none", {0, 4}, DType::kF32},
                              {"one", {1}, DType::kF32},
                              {"scalar", {}, DType::kF64},
                              {"w64", {5, 3, 2}, DType::kF64}};
  return *samples;
}

// Each axis shards some dim; some tensors are replicated along it.
Layout LayoutOf(const MeshShape& mesh, const Sample& sample, size_t number) {
  Layout layout = Layout::Replicated(mesh, sample.shape);
  for (int axis = 0; axis < mesh.num_axes() && !sample.shape.empty(); ++axis) {
    if ((number + static_cast<size_t>(axis)) % 4 == 3) continue;
    layout = layout.With(axis, Shard((static_cast<int>(number) + axis) % sample.shape.size()));
  }
  return layout;
}

Tensor LocalOf(ExecutionContext& context, const Sample& sample, const Box& box,
               const ValueOf& value) {
  Tensor tensor = Tensor::Empty(context, box.Extents(), sample.dtype);
  const Dims extents = box.Extents();
  VisitDType(sample.dtype, [&]<typename T>() {
    T* const data = tensor.mutable_data<T>();
    for (int64_t i = 0; i < extents.NumElements(); ++i) {
      int64_t rest = i, index = 0, stride = 1;
      for (int d = extents.size() - 1; d >= 0; --d) {
        index += (box.begin[d] + rest % extents[d]) * stride;
        rest /= extents[d];
        stride *= sample.shape[d];
      }
      data[i] = static_cast<T>(value(sample.name, index));
    }
  });
  return tensor;
}

}  // namespace

ToolResult Tool(const std::vector<std::string>& arguments) {
  const std::vector<std::string_view> views(arguments.begin(), arguments.end());
  std::ostringstream out, err;
  Console console = {out, err, /*is_terminal=*/false};
  ToolResult result;
  result.code = RunTool(views, console);
  result.out = out.str();
  result.err = err.str();
  return result;
}

std::string InFolder(const std::string& name) { return absl::StrCat(TestFolder(), "/", name); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

void Damage(const std::string& path, int64_t offset) {
  std::string bytes = ReadFile(path);
  ASSERT_FALSE(bytes.empty()) << path;
  bytes[offset < 0 ? bytes.size() + offset : offset] ^= 4;
  WriteFile(path, bytes);
}

double SampleValue(const std::string& name, int64_t index) {
  if (name == "layers.0.mask") return index % 3 == 0 ? 1 : 0;
  return static_cast<double>(index % 97) - 48 + static_cast<double>(name.size());
}

StateDict SampleState(const DeviceMesh& mesh, const ValueOf& value) {
  StateDict state;
  for (size_t i = 0; i < Samples().size(); ++i) {
    const Sample& sample = Samples()[i];
    const Layout layout = LayoutOf(mesh.shape(), sample, i);
    const Box box = layout.LocalBox(mesh.coord());
    StateEntry entry;
    entry.name = sample.name;
    if (i == 0) entry.aliases = {"head.weight"};
    entry.value = DTensor(mesh, layout, LocalOf(mesh.context(), sample, box, value));
    state.Add(std::move(entry));
  }
  state.Add("step", int64_t{9007199254740993});
  state.Add("rate", 0.1);
  state.Add("note", std::string("a \"b\"\n\xc3\xa9"));
  state.Add("list", StateList{{int64_t{-1}, 0.5, std::string("x"), StateList{{true}}}});
  return state;
}

void OnRanks(const MeshShape& mesh, const std::function<void(const DeviceMesh&)>& fn) {
  EXPECT_EQ(RunRanks(static_cast<int>(mesh.NumRanks()),
                     [&](Communicator& world) { fn(DeviceMesh::Create(world, mesh)); }),
            absl::OkStatus())
      << mesh.ToString();
}

void SaveSample(const std::string& path, const MeshShape& mesh, const ValueOf& value) {
  OnRanks(mesh, [&](const DeviceMesh& own) {
    EXPECT_EQ(Save(path, SampleState(own, value), {.overwrite = true, .sync = false}),
              absl::OkStatus());
  });
}

}  // namespace shardmesh::checkpoint::tool::testing
