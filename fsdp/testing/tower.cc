// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/testing/tower.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "gtest/gtest.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/optim/sgd.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::fsdp::testing {
namespace {

nn::LinearOptions InF64() {
  return {.bias = true, .dtype = DType::kF64, .weight_init = nn::Init::Normal(0, 0.4)};
}

// Column-parallel up, row-parallel down.
void PlaceAlongTp(Tower& tower, const DeviceMesh& mesh) {
  const int tp = mesh.shape().Index("tp");
  const auto place = [&](nn::Parameter parameter, int dim) {
    const Layout replicated = Layout::Replicated(mesh.shape(), parameter.shape());
    parameter.Place(mesh, replicated.With(tp, shardmesh::Shard(dim)));
  };
  for (auto& block : tower.blocks) {
    place(block->up.weight(), 0);
    place(block->up.bias(), 0);
    place(block->down.weight(), 1);
  }
}

void RunProgram(const LabMesh& on, bool is_sharded, const LabOptions& options,
                const std::function<void(Lab&)>& program) {
  const absl::Status status =
      RunRanks(static_cast<int>(on.shape.NumRanks()), [&](Communicator& world) {
        Lab lab;
        lab.mesh = DeviceMesh::Create(world, on.shape);
        lab.is_sharded = is_sharded;
        lab.tower = std::make_unique<Tower>(options.widths);
        if (on.shape.Has("tp")) PlaceAlongTp(*lab.tower, lab.mesh);
        if (is_sharded) {
          SetReleasesOnOneRank(lab.mesh, on.releases_on_one_rank);
          for (auto& block : lab.tower->blocks) FullyShard(*block, lab.mesh, options.fsdp);
          if (options.has_root_unit) FullyShard(*lab.tower, lab.mesh, options.fsdp);
        }
        lab.tower->PlaceReplicated(lab.mesh);
        lab.tower->Initialize(1);
        program(lab);
      });
  EXPECT_TRUE(status.ok()) << on.shape.ToString() << ": " << status;
}

}  // namespace

Block::Block(int64_t width) : up(kFeatures, width, InF64()), down(width, kFeatures, InF64()) {
  RegisterChild("up", up);
  RegisterChild("down", down);
}

nn::Outputs Block::Forward(const Inputs& x) {
  const DTensor hidden = Tanh(up(x[0]));
  in_forward();
  return Add(x[0], down(hidden));
}

Tower::Tower(const std::vector<int64_t>& widths) : head(kFeatures, kOutputs, InF64()) {
  for (size_t i = 0; i < widths.size(); ++i) {
    blocks.push_back(std::make_unique<Block>(widths[i]));
    RegisterChild("block" + std::to_string(i), *blocks.back());
    route.push_back(static_cast<int>(i));
  }
  RegisterChild("head", head);
}

nn::Outputs Tower::Forward(const Inputs& x) {
  DTensor y = x[0];
  for (int i : route) y = (*blocks[i])(y);
  return head(y);
}

DTensor Lab::Batch(int step, int64_t columns) const {
  std::vector<Placement> placements;
  for (const MeshAxis& axis : mesh.shape().axes())
    placements.push_back(axis.name == "tp" ? Replicate() : shardmesh::Shard(0));
  return FromBoxes(
      mesh, {kRows, columns}, DType::kF64, placements, [&](const Box& box, Tensor& local) {
        ops::RandomNormal(mesh.context(), {.seed = 77, .stream = static_cast<uint64_t>(step)},
                          {{kRows, columns}, box.begin}, 0.0, 1.0, local);
      });
}

DTensor Lab::Loss(int step) const {
  return MseLoss((*tower)(Batch(step)), Batch(step + 1000, kOutputs));
}

int64_t Lab::Bytes(MemoryCategory category) const {
  return mesh.context().allocator()->stats(category).bytes;
}
int64_t Lab::Peak(MemoryCategory category) const {
  return mesh.context().allocator()->stats(category).peak_bytes;
}

void Numbers::Add(const std::string& name, const DTensor& x) {
  if (!x) {
    entries_.push_back({name + " (none)", {}});
  } else {
    entries_.push_back({name, FullTensor(x).ToVector<double>()});
  }
}

void Numbers::Gradients(const Lab& lab) {
  for (const nn::Parameter& parameter : lab.tower->Parameters())
    Add("gradient of " + parameter.name(), parameter.data().grad());
}

void Numbers::Parameters(const Lab& lab) {
  for (const nn::Parameter& parameter : lab.tower->Parameters())
    Add(parameter.name(), parameter.data());
}

const std::vector<LabMesh>& LabMeshes() {
  static const std::vector<LabMesh>* const meshes =
      new std::vector<LabMesh>{{{{"dp", 1}}, /*releases_on_one_rank=*/true},
                               {{{"dp", 2}}},
                               {{{"dp", 3}}},
                               {{{"dp", 2}, {"tp", 2}}},
                               {{{"dp_replicate", 2}, {"dp", 2}}}};
  return *meshes;
}

void OnLabMesh(const LabMesh& mesh, const LabOptions& options,
               const std::function<void(Lab&)>& program) {
  SCOPED_TRACE(mesh.shape.ToString());
  RunProgram(mesh, /*is_sharded=*/true, options, program);
}

void OnEachMesh(const LabOptions& options, const std::function<void(Lab&)>& program) {
  for (const LabMesh& mesh : LabMeshes()) OnLabMesh(mesh, options, program);
}

void ExpectSameOnEachMesh(const std::function<void(Lab&, Numbers&)>& program,
                          const LabOptions& options) {
  ExpectSameOn(LabMeshes(), options, program);
}

void ExpectSameOn(const std::vector<LabMesh>& meshes, const LabOptions& options,
                  const std::function<void(Lab&, Numbers&)>& program) {
  Numbers expected;
  RunProgram({{{"dp", 1}}}, /*is_sharded=*/false, options,
             [&](Lab& lab) { program(lab, expected); });
  ASSERT_FALSE(expected.entries().empty());
  const auto compare = [&](Lab& lab) {
    Numbers actual;
    program(lab, actual);
    ASSERT_EQ(actual.entries().size(), expected.entries().size());
    for (size_t i = 0; i < actual.entries().size(); ++i) {
      const Numbers::Entry &a = actual.entries()[i], &e = expected.entries()[i];
      ASSERT_EQ(a.name, e.name);
      ASSERT_EQ(a.values.size(), e.values.size()) << a.name;
      double scale = 0;
      for (double value : e.values) scale = std::max(scale, std::abs(value));
      for (size_t j = 0; j < a.values.size(); ++j)
        ASSERT_NEAR(a.values[j], e.values[j], 1e-12 * scale) << a.name << "[" << j << "]";
    }
  };
  for (const LabMesh& mesh : meshes) OnLabMesh(mesh, options, compare);
}

int64_t GatheredBytes(const Lab& lab, nn::Module& module, const std::vector<std::string>& axes) {
  int64_t bytes = 0;
  for (const nn::Parameter& parameter : module.Parameters()) {
    Layout layout = parameter.layout();
    for (const std::string& axis : axes)
      layout = layout.With(lab.mesh.shape().Index(axis), Replicate());
    bytes += layout.LocalShape(lab.mesh.coord()).NumElements() * 8;
  }
  return bytes;
}

void SgdStep(nn::Module& module, double lr) { optim::Sgd(module.Parameters(), {.lr = lr}).Step(); }

}  // namespace shardmesh::fsdp::testing
