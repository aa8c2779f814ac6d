// SPDX-License-Identifier: Apache-2.0
//
// Random module trees in random units of one module or several, and random lives of them
// (training, evaluation, freezing, hooks, exceptions, micro-batches, changing routes, dropped
// graphs, switches, checkpointed branches, several results, results on the side), on meshes against
// one rank without FullyShard and checkpointing: the same losses, gradients and parameters. In
// every program, what the model of gather_model.h says is gathered, and its peak: after each
// action, and at each call of a unit in forward, backward and recomputation.
//
//   fully_shard_fuzz_test --minutes=20 --from=1000    # programs of seeds 1000, 1001, ..
//   fully_shard_fuzz_test --seed=7                    # one program, as a failure prints it
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/checkpoint.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/optim/sgd.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tests/fuzz/branch.h"
#include "shardmesh/tests/fuzz/gather_model.h"
#include "shardmesh/tests/fuzz/modelled_units.h"
#include "shardmesh/tests/fuzz/seed_flags.h"

namespace shardmesh::fsdp {
namespace {

using shardmesh::testing::Random;

shardmesh::testing::SeedFlags flags;

const Dims kBatch = {6, Branch::kFeatures};
constexpr double kTolerance = 1e-9;

struct RunSetup {
  MeshShape mesh;
  bool is_sharded = true;
};

// The loss of one forward, and the calls of units in it.
struct Loss {
  DTensor value;
  GatherModel::Graph graph;
};

// One rank's run of the program of a seed. Decisions follow from the seed alone.
class Program {
 public:
  Program(const DeviceMesh& mesh, bool is_sharded, uint64_t seed)
      : mesh_(mesh),
        is_sharded_(is_sharded),
        random_(seed),
        watch_(mesh),
        units_(mesh, watch_.model) {
    if (is_sharded) SetReleasesOnOneRank(mesh, true);
    Build();
  }

  using Seen = std::vector<std::pair<std::string, std::vector<double>>>;
  Seen Run() {
    const int64_t actions = 4 + random_.Below(8);
    for (int64_t i = 0; i < actions; ++i) {
      mesh_.context().allocator()->ResetPeaks();
      watch_.model.ResetPeak();
      Act(i);
      watch_.Expect(absl::StrCat("the end of action ", i));
    }
    for (const nn::Parameter& parameter : root_->Parameters())
      Note("final " + parameter.name(), parameter.data());
    return std::move(seen_);
  }

 private:
  // ---- building -------------------------------------------------------------------------------
  void Build() {
    root_ = MakeBranch(/*depth=*/0);
    has_sides_ = random_.Below(3) == 0;
    for (Branch* branch : branches_) {
      if (random_.Below(4) == 0 && has_sides_) branch->side = &side_;
    }
    watch_.is_on = is_sharded_;
    if (mesh_.shape().Has("tp")) PlaceAlongTp();
    const bool lists = random_.Below(3) == 0;
    const bool ignores = random_.Below(3) == 0;
    const auto salt = static_cast<uint64_t>(random_.Below(1000));
    // Decided for every run alike, made where there is FullyShard.
    for (Branch* branch : ChildrenFirst()) {
      FullyShardOptions options;
      const int64_t kind = random_.Below(10);
      if (kind == 0) options.strategy = Strategy::kShardGradOp;
      if (kind == 1) options.strategy = Strategy::kOptimizerState;
      if (kind == 2) options.strategy = Strategy::kReplicate;
      if (kind == 3) options.reshard_after_forward = false;
      if (kind == 4) options.reshard_after_forward = true;
      const std::string slice_axis = random_.Below(2) == 0 ? "dp" : "cp";
      if (ignores) {
        options.ignored = [salt](const nn::Parameter& parameter) {
          return nn::RandomStreamOf(parameter.name(), salt) % 4 == 0;
        };
      }
      const bool becomes_unit = branch == root_.get() ? random_.Below(4) > 0 : random_.Below(3) > 0;
      // Any others: beside it, within it or around it.
      std::vector<Branch*> modules = {branch};
      for (int64_t i = lists ? random_.Below(3) : 0; i > 0; --i) {
        Branch* const other = &AnyBranch();
        if (std::find(modules.begin(), modules.end(), other) == modules.end())
          modules.push_back(other);
      }
      if (mesh_.shape().Has("cp") && options.strategy != Strategy::kReplicate)
        options.shard_axes = {"dp", "cp"};
      if (mesh_.shape().Has("cp") && (kind == 5 || kind == 6))
        options.reshard_after_forward_axes = {slice_axis};
      if (becomes_unit && is_sharded_ && units_.Make(modules, options)) keeps_some_ |= kind < 4;
    }
    units_.FindRoots();
    SetPrefetchLists();
    SetCheckpoints();
    root_->PlaceReplicated(mesh_);
    root_->Initialize(random_.Below(1000));
  }

  // The run on one rank checkpoints nothing. Whole branches, parts of them, nested, selective.
  void SetCheckpoints() {
    const bool checkpoints = random_.Below(2) == 0;
    for (Branch* branch : branches_) {
      const int64_t kind = random_.Below(8);
      if (!checkpoints || !is_sharded_) continue;
      if (kind < 3) nn::CheckpointActivations(*branch);
      if (kind == 3) {
        nn::CheckpointActivations(*branch,
                                  {.keep = [](std::string_view op) { return op == "linear"; }});
      }
      if (kind == 2 || kind == 4) nn::CheckpointActivations(*branch->Find("down"));
      if (kind == 1) nn::KeepActivations(*branch->Find("up"));
    }
  }

  // Of some branches, those that are units.
  void SetPrefetchLists() {
    for (Branch* branch : branches_) {
      std::vector<nn::Module*> ahead;
      for (int64_t i = random_.Below(3); i > 0; --i) ahead.push_back(&AnyBranch());
      const int64_t kind = random_.Below(8);
      if (!is_sharded_ || kind > 2) continue;
      const bool is_forward = kind == 0;
      if (kind == 2) ahead.clear();
      const absl::Status status = Catch([&] {
        is_forward ? SetForwardPrefetch(*branch, ahead) : SetBackwardPrefetch(*branch, ahead);
      });
      if (status.ok()) {
        GatherModel::Unit& unit = watch_.model.unit(branch);
        (is_forward ? unit.forward_prefetch : unit.backward_prefetch)
            .emplace(ahead.begin(), ahead.end());
      }
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
    }
  }

  std::shared_ptr<Branch> MakeBranch(int depth) {
    const nn::Parameter* tied = nullptr;
    if (!weights_.empty() && random_.Below(8) == 0)
      tied = &weights_[random_.Below(static_cast<int64_t>(weights_.size()))];
    auto branch = std::make_shared<Branch>(2 + random_.Below(7), tied, fuse_, watch_);
    weights_.push_back(branch->up().weight());
    branch->detaches = random_.Below(10) == 0;
    branch->drops = random_.Below(3) == 0;
    branch->has_second = random_.Below(3) == 0;
    branch->uses_second = random_.Below(2) == 0;
    const int64_t children = depth == 0 ? 1 + random_.Below(4) : random_.Below(3 - depth);
    for (int64_t i = 0; i < children; ++i)
      branch->Adopt("child" + std::to_string(i), MakeBranch(depth + 1));
    branches_.push_back(branch.get());
    return branch;
  }

  // As MakeBranch has finished them, or the other way around.
  std::vector<Branch*> ChildrenFirst() {
    if (random_.Below(2) == 0) return branches_;
    std::vector<Branch*> last_first;
    for (const nn::Module::NamedModule& named : root_->NamedModules()) {
      if (auto* const branch = dynamic_cast<Branch*>(named.module)) last_first.push_back(branch);
    }
    std::reverse(last_first.begin(), last_first.end());
    return last_first;
  }

  void PlaceAlongTp() {
    const int tp = mesh_.shape().Index("tp");
    for (Branch* branch : branches_) {
      nn::Parameter up = branch->up().weight(), bias = branch->up().bias();
      nn::Parameter down = branch->down().weight();
      const auto along = [&](const nn::Parameter& parameter, int dim) {
        return Layout::Replicated(mesh_.shape(), parameter.shape()).With(tp, Shard(dim));
      };
      up.Place(mesh_, along(up, 0));
      bias.Place(mesh_, along(bias, 0));
      down.Place(mesh_, along(down, 1));
    }
  }

  // ---- acting ---------------------------------------------------------------------------------
  void Act(int64_t i) {
    const std::string at = absl::StrCat("action ", i, ": ");
    switch (random_.Below(15)) {
      case 0: {
        const NoGrad no_grad(mesh_);
        Note(at + "evaluation", LossOf(random_.Below(100)).value);
        ExpectReleased(at + "evaluation");
        break;
      }
      case 1:
        FreezeOrThaw();
        break;
      case 2: {  // Other routes, with repetitions.
        Branch& branch = AnyBranch();
        branch.route.clear();
        const int64_t n = static_cast<int64_t>(branch.num_children());
        for (int64_t k = 0; n > 0 && k < 1 + random_.Below(3); ++k)
          branch.route.push_back(static_cast<int>(random_.Below(n)));
        break;
      }
      case 3: {
        nn::Parameter parameter = AnyParameter();
        const double factor = random_.Below(3) == 0 ? 0.0 : 0.5;
        if (!parameter.requires_grad()) break;
        DTensor(parameter.data()).RegisterGradHook([factor](const DTensor& grad) {
          return Mul(grad, factor);
        });
        break;
      }
      case 4:
        FailInForward(at);
        break;
      case 5:
        FailInBackward(at);
        break;
      case 6: {  // Two forwards, one or two backwards, in either order.
        Loss a = LossOf(random_.Below(100));
        Loss b = LossOf(random_.Below(100));
        const int64_t way = random_.Below(3);
        if (way == 0) {
          a.value = Add(a.value, b.value);
          a.graph.insert(a.graph.end(), b.graph.begin(), b.graph.end());
          Differentiate(a);
        } else {
          has_graphs_ = true;
          Differentiate(way == 1 ? a : b);
          has_graphs_ = false;
          Differentiate(way == 1 ? b : a);
        }
        NoteGradients(at);
        break;
      }
      case 7: {  // Dropped without a backward, but perhaps for that of the result on the side.
        watch_.model.Drop(LossOf(random_.Below(100)).graph);
        const bool differentiates = random_.Below(2) == 0;
        if (!side_ || !differentiates) break;
        Differentiate({*side_, watch_.model.TakeSide()});
        NoteGradients(at);
        break;
      }
      case 8: {      // New values.
        DropSide();  // Its backward would be an error.
        nn::Parameter parameter = AnyParameter();
        const NoGrad no_grad(mesh_);
        const DTensor other = Redistribute(Mul(parameter.data(), 0.75), parameter.layout());
        const int64_t way = random_.Below(3);
        if (way == 0) parameter.SetData(other);
        if (way == 1) CopyInPlace(parameter.data(), other);
        if (way == 2) parameter.SetFull(FullTensor(other));  // As a saved state is loaded.
        break;
      }
      case 9:
        Window(at);
        break;
      case 10: {
        AnyBranch().side = random_.Below(2) == 0 && has_sides_ ? &side_ : nullptr;
        break;
      }
      case 11:
        SwitchUnits();
        break;
      default: {
        const Loss loss = LossOf(random_.Below(100));
        Note(at + "loss", loss.value);
        Differentiate(loss);
        Step(at);
        break;
      }
    }
  }

  // Single parameters; all that branches use apart from their children; all but those of one.
  void FreezeOrThaw() {
    const int64_t way = random_.Below(3);
    for (nn::Parameter parameter : root_->Parameters()) {
      const bool changes = random_.Below(3) == 0, thaws = random_.Below(2) == 0;
      if (way == 0 && changes) parameter.set_requires_grad(thaws);
    }
    const Branch* const only = &AnyBranch();
    for (Branch* branch : branches_) {
      const bool changes = random_.Below(2) == 0, thaws = random_.Below(2) == 0;
      if (way == 0 || (way == 1 && !changes)) continue;
      for (nn::Parameter parameter : {branch->up().weight(), branch->up().bias(),
                                      branch->down().weight(), branch->down().bias()})
        parameter.set_requires_grad(way == 1 ? thaws : branch == only);
    }
  }

  // What is gathered between steps, of a unit or of all at and below a branch.
  void SwitchUnits() {
    Branch& branch = AnyBranch();
    const int64_t way = random_.Below(4);
    const bool recursive = way > 1 || random_.Below(2) == 0;
    const int64_t kind = random_.Below(3);
    if (!is_sharded_) return;
    const std::optional<bool> reshards = kind == 0 ? std::nullopt : std::optional<bool>(kind == 1);
    keeps_some_ |= kind == 2 || way == 2;
    const absl::Status status = Catch([&] {
      if (way == 0) SetReshardAfterForward(branch, reshards, recursive);
      if (way == 1) SetReshardAfterBackward(branch, reshards, recursive);
      if (way == 2) Unshard(branch);
      if (way == 3) Reshard(branch);
    });
    const std::vector<ModelledUnits::Unit> units = units_.Below(branch, recursive);
    for (const ModelledUnits::Unit& unit : units) {
      if (way == 0) watch_.model.unit(unit[0]).switched_after_forward = reshards;
      if (way == 1) watch_.model.unit(unit[0]).switched_after_backward = reshards;
      if (way == 2) watch_.model.Unshard(unit[0]);
      if (way == 3) watch_.model.Reshard(unit[0]);
    }
    EXPECT_EQ(status.code(),
              units.empty() ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kOk);
  }

  Branch& AnyBranch() { return *branches_[random_.Below(static_cast<int64_t>(branches_.size()))]; }
  nn::Parameter AnyParameter() {
    const std::vector<nn::Parameter> all = root_->Parameters();
    return all[random_.Below(static_cast<int64_t>(all.size()))];
  }

  Loss LossOf(int64_t batch) {
    std::vector<Placement> placements;
    for (const MeshAxis& axis : mesh_.shape().axes())
      placements.push_back(axis.name == "tp" ? Replicate() : Shard(0));
    const DTensor x =
        FromBoxes(mesh_, kBatch, DType::kF64, placements, [&](const Box& box, Tensor& local) {
          ops::RandomNormal(mesh_.context(), {.seed = 5, .stream = static_cast<uint64_t>(batch)},
                            {kBatch, box.begin}, 0.0, 1.0, local);
        });
    DropSide();
    DTensor loss;
    try {
      loss = Mean(Square(root_->Combined(x)));
    } catch (...) {
      watch_.model.Drop(watch_.model.TakeGraph());
      throw;
    }
    if (side_) {
      loss = Add(loss, Mul(*side_, 0.1));
      watch_.model.AddSideToLoss();
    }
    return {loss, watch_.model.TakeGraph()};
  }

  void DropSide() {
    side_.reset();
    watch_.model.DropSide();
  }

  void Differentiate(const Loss& loss) {
    if (!loss.value.RequiresGrad()) return;
    watch_.model.BeginBackward(loss.graph);
    Backward(loss.value);
    watch_.model.EndBackward();
    ExpectReleased("a backward");
  }

  // The fuse may burn in forward or in backward. Returns how far it has come.
  int TryToDifferentiate(int64_t batch) {
    fuse_.points_left = static_cast<int>(random_.Below(20));
    int passed = 0;
    try {
      const Loss loss = LossOf(batch);
      passed = 1;
      Differentiate(loss);
      passed = 2;
    } catch (const std::runtime_error&) {
      if (passed == 1) watch_.model.FailBackward();
    }
    fuse_.points_left = -1;
    return passed;
  }

  // Nothing may stay gathered where no unit's options keep it.
  void ExpectReleased(const std::string& after) {
    DropSide();  // Its graph would keep what its backward needs.
    const Allocator& memory = *mesh_.context().allocator();
    if (!keeps_some_ && !has_graphs_) {
      EXPECT_EQ(memory.stats(MemoryCategory::kUnshardedParameters).bytes, 0) << after;
    }
    if (!in_window_) {
      EXPECT_EQ(memory.stats(MemoryCategory::kUnshardedGradients).bytes, 0) << after;
    }
  }

  void Step(const std::string& at) {
    Note(at + "norm", {optim::ClipGradNorm(root_->Parameters(), 1.0)});
    NoteGradients(at);
    optim::Sgd(root_->Parameters(), {.lr = 0.05}).Step();
  }

  void FailInForward(const std::string& at) {
    fuse_.points_left = static_cast<int>(random_.Below(6));
    bool failed = false;
    try {
      const NoGrad no_grad(mesh_);
      LossOf(1);
    } catch (const std::runtime_error&) {
      failed = true;
    }
    fuse_.points_left = -1;
    Note(at + "failed", {failed ? 1.0 : 0.0});
    ExpectReleased(at);
  }

  void FailInBackward(const std::string& at) {
    Note(at + "failed", {static_cast<double>(TryToDifferentiate(2))});
    NoteGradients(at);
    ExpectReleased(at);
  }

  void Sync(bool sync, bool all_reduce = true) {
    watch_.model.syncs = sync;
    if (units_.empty()) return;
    SetRequiresGradientSync(*root_, sync);
    SetRequiresAllReduce(*root_, all_reduce);
  }

  // Micro-batches of which the last reduces; perhaps one fails, and all begin again.
  void Window(const std::string& at) {
    const int64_t micros = 1 + random_.Below(3);
    const bool fails = random_.Below(4) == 0;
    in_window_ = true;
    for (int64_t i = 0; i < micros; ++i) {
      const bool scatters = random_.Below(2) == 0;
      Sync(/*sync=*/scatters, /*all_reduce=*/!scatters);
      Differentiate(LossOf(random_.Below(100)));
    }
    if (fails) {
      TryToDifferentiate(3);
      if (!units_.empty()) DiscardUnreducedGradients(*root_);
      for (const nn::Parameter& parameter : root_->Parameters())
        DTensor(parameter.data()).ZeroGrad();
    }
    Sync(true);
    in_window_ = false;
    const Loss loss = LossOf(random_.Below(100));
    // Where nothing is trained, what earlier micro-batches have made stays unreduced.
    if (!loss.value.RequiresGrad()) {
      if (!units_.empty()) DiscardUnreducedGradients(*root_);
      for (const nn::Parameter& parameter : root_->Parameters())
        DTensor(parameter.data()).ZeroGrad();
      return;
    }
    Differentiate(loss);
    Step(at);
  }

  // ---- noting ---------------------------------------------------------------------------------
  void Note(const std::string& name, const DTensor& x) {
    Note(name, FullTensor(x).ToVector<double>());
  }
  void Note(const std::string& name, std::vector<double> values) {
    seen_.push_back({name, std::move(values)});
  }
  void NoteGradients(const std::string& at) {
    for (const nn::Parameter& parameter : root_->Parameters()) {
      const DTensor& grad = parameter.data().grad();
      const std::string name = at + "gradient of " + parameter.name();
      if (grad) {
        Note(name, grad);
      } else {
        Note(name + " (none)", std::vector<double>{});
      }
    }
  }

  DeviceMesh mesh_;
  bool is_sharded_;
  Random random_;
  Fuse fuse_;
  GatherWatch watch_;
  ModelledUnits units_;
  std::shared_ptr<Branch> root_;
  std::vector<Branch*> branches_;
  std::vector<nn::Parameter> weights_;
  std::optional<DTensor> side_;
  bool has_sides_ = false;  // Results beside the last one.
  bool keeps_some_ = false;
  bool in_window_ = false;
  bool has_graphs_ = false;  // Whose backward is to come: slices are kept for it.
  Seen seen_;
};

Program::Seen RunOn(const RunSetup& setup, uint64_t seed) {
  Program::Seen seen;
  const absl::Status status =
      RunRanks(static_cast<int>(setup.mesh.NumRanks()), [&](Communicator& world) {
        // Traces belong to a thread.
        SCOPED_TRACE(absl::StrCat("repeat with --seed=", seed, ", on ", setup.mesh.ToString()));
        Program program(DeviceMesh::Create(world, setup.mesh), setup.is_sharded, seed);
        Program::Seen mine = program.Run();
        if (world.rank() == 0) seen = std::move(mine);
      });
  EXPECT_TRUE(status.ok()) << status;
  return seen;
}

// The first difference, or "".
std::string Difference(const Program::Seen& expected, const Program::Seen& actual) {
  for (size_t i = 0; i < expected.size() && i < actual.size(); ++i) {
    const auto& [name, values] = expected[i];
    if (actual[i].first != name || actual[i].second.size() != values.size())
      return absl::StrCat(actual[i].first, " where ", name, " was expected");
    double scale = 1e-6;
    for (double value : values) scale = std::max(scale, std::abs(value));
    for (size_t j = 0; j < values.size(); ++j) {
      if (std::abs(actual[i].second[j] - values[j]) <= kTolerance * scale) continue;
      return absl::StrCat(name, "[", j, "] is ", actual[i].second[j], ", expected ", values[j]);
    }
  }
  return expected.size() == actual.size() ? "" : "one has seen more than the other";
}

const RunSetup kSetups[] = {{{{"dp", 1}}},
                            {{{"dp", 2}}},
                            {{{"dp", 3}}},
                            {{{"dp", 2}, {"tp", 2}}},
                            {{{"dp_replicate", 2}, {"dp", 2}}},
                            {{{"dp", 2}, {"cp", 2}}}};

TEST(FullyShardFuzz, ComputesWhatOneRankDoes) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(60 * flags.minutes);
  int64_t programs = 0, runs = 0;
  for (uint64_t seed = flags.first_seed; std::chrono::steady_clock::now() < end; ++seed) {
    const Program::Seen expected = RunOn({{{"dp", 1}}, /*is_sharded=*/false}, seed);
    for (const RunSetup& setup : kSetups) {
      SCOPED_TRACE(absl::StrCat("repeat with --seed=", seed, ", on ", setup.mesh.ToString()));
      const std::string difference = Difference(expected, RunOn(setup, seed));
      EXPECT_EQ(difference, "");
      ++runs;
      if (::testing::Test::HasFailure()) return;
    }
    ++programs;
    if (flags.one_program) break;
  }
  std::cout << programs << " programs from seed " << flags.first_seed << ", " << runs
            << " runs on meshes, none differed\n";
}

}  // namespace
}  // namespace shardmesh::fsdp

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!shardmesh::fsdp::flags.Parse(argc, argv)) return EXIT_FAILURE;
  return RUN_ALL_TESTS();
}
