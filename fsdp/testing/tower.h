// SPDX-License-Identifier: Apache-2.0
//
// A small model for the tests of FullyShard, and the same program on one rank without FullyShard
// and on meshes with it.
//
//   ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
//     Backward(lab.Loss(0));
//     seen.Gradients(lab);
//   });
#ifndef SHARDMESH_FSDP_TESTING_TOWER_H_
#define SHARDMESH_FSDP_TESTING_TOWER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/linear.h"

namespace shardmesh::fsdp::testing {

constexpr int64_t kFeatures = 7;
constexpr int64_t kOutputs = 3;
constexpr int64_t kRows = 6;

/// x + down(tanh(up(x))) in f64, with extents that nothing divides.
class Block : public nn::Module {
 public:
  explicit Block(int64_t width);
  nn::Linear up, down;
  std::function<void()> in_forward = [] {};  ///< Called between the two.

 protected:
  Outputs Forward(const Inputs& x) override;
};

/// Blocks and a head. `route` says which blocks a forward calls, in order; default: each once.
class Tower : public nn::Module {
 public:
  explicit Tower(const std::vector<int64_t>& widths);
  std::vector<std::unique_ptr<Block>> blocks;
  nn::Linear head;
  std::vector<int> route;

 protected:
  Outputs Forward(const Inputs& x) override;
};

/// A tower on a mesh, in units or not.
struct Lab {
  DeviceMesh mesh;
  bool is_sharded = false;
  std::unique_ptr<Tower> tower;

  /// Random rows, split over all axes but tp; the same numbers on every mesh.
  DTensor Batch(int step, int64_t columns = kFeatures) const;
  /// Of a batch that `step` determines.
  DTensor Loss(int step) const;
  Block& block(int i) const { return *tower->blocks[i]; }
  int64_t Bytes(MemoryCategory category) const;
  int64_t Peak(MemoryCategory category) const;
};

/// What a program has seen: named numbers, compared between meshes.
class Numbers {
 public:
  void Add(const std::string& name, double value) { entries_.push_back({name, {value}}); }
  void Add(const std::string& name, const DTensor& x);
  /// All gradients of the tower ("none" where there is none), and all its parameters.
  void Gradients(const Lab& lab);
  void Parameters(const Lab& lab);

  struct Entry {
    std::string name;
    std::vector<double> values;
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

struct LabOptions {
  std::vector<int64_t> widths = {11, 5, 13};
  FullyShardOptions fsdp = {};
  bool has_root_unit = true;
};

/// The meshes on which programs run: one rank that releases as several do, dp=2, dp=3, dp=2 tp=2
/// and dp_replicate=2 dp=2.
struct LabMesh {
  MeshShape shape;
  bool releases_on_one_rank = false;
};
const std::vector<LabMesh>& LabMeshes();

/// Runs `program` on one mesh with FullyShard.
void OnLabMesh(const LabMesh& mesh, const LabOptions& options,
               const std::function<void(Lab&)>& program);
/// On each of LabMeshes().
void OnEachMesh(const LabOptions& options, const std::function<void(Lab&)>& program);
/// Expects the numbers that one rank without FullyShard sees, to 1e-12 of the largest in an entry.
void ExpectSameOnEachMesh(const std::function<void(Lab&, Numbers&)>& program,
                          const LabOptions& options = {});
/// The same on `meshes`.
void ExpectSameOn(const std::vector<LabMesh>& meshes, const LabOptions& options,
                  const std::function<void(Lab&, Numbers&)>& program);

/// Bytes of the form of `module`'s f64 parameters that is gathered along `axes`, on this rank.
int64_t GatheredBytes(const Lab& lab, nn::Module& module,
                      const std::vector<std::string>& axes = {"dp"});

/// One step of plain SGD.
void SgdStep(nn::Module& module, double lr);

}  // namespace shardmesh::fsdp::testing

#endif  // SHARDMESH_FSDP_TESTING_TOWER_H_
