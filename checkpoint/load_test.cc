// SPDX-License-Identifier: Apache-2.0
//
// What a load reads, by how many threads, and what replicas send each other.
#include "shardmesh/checkpoint/load.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/checkpoint/testing/watched_files.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::checkpoint {
namespace {

using ::testing::HasSubstr;
using testing::WatchedFiles;

void OnRanks(const MeshShape& mesh, const std::function<void(const DeviceMesh&)>& fn) {
  EXPECT_EQ(RunRanks(static_cast<int>(mesh.NumRanks()),
                     [&](Communicator& world) { fn(DeviceMesh::Create(world, mesh)); }),
            absl::OkStatus())
      << mesh.ToString();
}

double ValueAt(int64_t tensor, int64_t index) {
  return static_cast<double>(tensor) * 1000003 + static_cast<double>(index);
}

// The tensors of a run on dp_replicate and dp: two that replicas split, and small ones; by rows, by
// columns, and on all ranks.
class Tensors {
 public:
  static constexpr int kSmall = 12;

  Tensors(const DeviceMesh& mesh, bool has_values) : mesh_(mesh) {
    Add("rows", {607, 501}, {Replicate(), Shard(0)}, has_values);
    Add("columns", {401, 700}, {Replicate(), Shard(1)}, has_values);
    for (int i = 0; i < kSmall; ++i)
      Add(absl::StrCat("small", i), {5 + i, 3}, {Replicate(), Shard(i % 2)}, has_values);
    for (int i = 0; i < 3; ++i)
      Add(absl::StrCat("same", i), {i + 1}, {Replicate(), Replicate()}, has_values);
  }

  StateDict& state() { return state_; }
  void ExpectValues() const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      EXPECT_EQ(tensors_[i].local().ToVector<double>(), ValuesOf(i, tensors_[i].layout()))
          << state_.entries()[i].name;
    }
  }
  // Without replicas.
  int64_t Bytes() const {
    int64_t bytes = 0;
    for (const DTensor& x : tensors_) bytes += x.shape().NumElements() * SizeOf(x.dtype());
    return bytes;
  }

 private:
  std::vector<double> ValuesOf(size_t number, const Layout& layout) const {
    const Box box = layout.LocalBox(mesh_.coord());
    const Dims extents = box.Extents();
    std::vector<double> values;
    for (int64_t i = 0; i < box.NumElements(); ++i) {
      int64_t rest = i, index = 0, stride = 1;
      for (int d = extents.size() - 1; d >= 0; --d) {
        index += (box.begin[d] + rest % extents[d]) * stride;
        rest /= extents[d];
        stride *= layout.global_shape()[d];
      }
      values.push_back(ValueAt(static_cast<int64_t>(number), index));
    }
    return values;
  }

  void Add(const std::string& name, const Dims& shape, const std::vector<Placement>& placements,
           bool has_values) {
    const Layout layout =
        Layout::Make(mesh_.shape(), std::span<const Placement>(placements), shape);
    Tensor local = Tensor::Empty(mesh_.context(), layout.LocalShape(mesh_.coord()), DType::kF64);
    if (has_values && local.NumElements() > 0) {
      const std::vector<double> values = ValuesOf(tensors_.size(), layout);
      std::copy(values.begin(), values.end(), local.mutable_data<double>());
    }
    tensors_.emplace_back(mesh_, layout, std::move(local));
    state_.Add(name, tensors_.back());
  }

  DeviceMesh mesh_;
  std::vector<DTensor> tensors_;
  StateDict state_;
};

const MeshShape kSavedOn = {{"dp_replicate", 2}, {"dp", 2}};

std::string SavedCheckpoint() {
  const std::string path = absl::StrCat(TestFolder(), "/saved");
  OnRanks(kSavedOn, [&](const DeviceMesh& mesh) {
    Tensors run(mesh, /*has_values=*/true);
    EXPECT_EQ(Save(path, run.state(), {.sync = false}), absl::OkStatus());
  });
  return path;
}

// The collectives with which replicas share what they have read.
class ShareCounter final : public CollectiveObserver {
 public:
  explicit ShareCounter(Communicator& ranks) : ranks_(ranks) { ranks_.AddObserver(this); }
  ~ShareCounter() override { ranks_.RemoveObserver(this); }
  void OnCollective(const CollectiveEvent& event) override {
    if (event.op != "checkpoint_share") return;
    (event.kind == CollectiveKind::kAllGather ? all_gathers : broadcasts) += 1;
  }
  int all_gathers = 0, broadcasts = 0;

 private:
  Communicator& ranks_;
};

TEST(ShareReads, ReadsEachByteOnceAndSendsItToTheOtherReplicas) {
  const std::string path = SavedCheckpoint();
  for (const MeshShape& shape : std::vector<MeshShape>{{{"dp_replicate", 3}, {"dp", 2}},
                                                       {{"dp_replicate", 4}, {"dp", 1}},
                                                       {{"dp_replicate", 1}, {"dp", 3}},
                                                       {{"dp_replicate", 2}, {"dp", 3}}}) {
    SCOPED_TRACE(shape.ToString());
    std::vector<int64_t> alone(shape.NumRanks()), shared(shape.NumRanks());
    int64_t bytes = 0;
    OnRanks(shape, [&](const DeviceMesh& mesh) {
      const int rank = mesh.WorldGroup().rank();
      WatchedFiles of_alone, of_shared;
      Tensors first(mesh, /*has_values=*/false), second(mesh, /*has_values=*/false);
      EXPECT_EQ(Load(path, first.state(), {.files = &of_alone}), absl::OkStatus());
      first.ExpectValues();
      ShareCounter counter(mesh.WorldGroup());
      EXPECT_EQ(Load(path, second.state(), {.share_reads = true, .files = &of_shared}),
                absl::OkStatus());
      second.ExpectValues();
      alone[rank] = of_alone.bytes();
      shared[rank] = of_shared.bytes();
      if (rank == 0) bytes = second.Bytes();
      // One all-gather of what is split by the replicas of a box, and of each replica that has
      // small tensors one broadcast of them all; likewise for those that all ranks have.
      const int replicas = mesh.Size("dp_replicate");
      const int of_same = std::min<int>(3, static_cast<int>(shape.NumRanks()));
      EXPECT_EQ(counter.all_gathers, replicas > 1 ? 1 : 0);
      const bool has_two_groups = mesh.Size("dp") > 1;
      const int of_small = has_two_groups || replicas == 1 ? of_same : 0;
      EXPECT_EQ(counter.broadcasts, of_small + (replicas > 1 ? replicas : 0));
    });
    int64_t sum_alone = 0, sum_shared = 0;
    for (int64_t of_rank : alone) sum_alone += of_rank;
    for (int64_t of_rank : shared) sum_shared += of_rank;
    if (shape.axis(1).size <= 2) {
      EXPECT_EQ(sum_shared, bytes);
      // The replicas read about as much as each other.
      for (int64_t of_rank : shared) EXPECT_LT(of_rank, bytes / shape.NumRanks() * 11 / 10);
    } else {
      // Runs of columns that were cut elsewhere are read with the gaps between them.
      EXPECT_LT(sum_shared, bytes * 2);
    }
    if (shape.axis(0).size > 1) {
      EXPECT_GT(sum_alone, shape.axis(0).size * (bytes - 1000));
    }
  }
}

TEST(ShareReads, CastsVerifiesAndComparesTiedTensors) {
  const std::string path = absl::StrCat(TestFolder(), "/tied");
  OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
    StateDict saved;
    saved.Add("a", Full(mesh, {700, 301}, DType::kF32, 1.5, {Shard(0)}));
    saved.Add("b", Full(mesh, {700, 301}, DType::kF32, 1.5, {Shard(1)}));
    saved.Add("c", Full(mesh, {700, 301}, DType::kF32, 2.5, {Shard(1)}));
    EXPECT_EQ(Save(path, saved, {.sync = false}), absl::OkStatus());
    const LoadOptions options = {
        .allow_unexpected = true, .allow_cast = true, .verify = true, .share_reads = true};
    const DTensor x = Full(mesh, {700, 301}, DType::kF64, 0.0, {Replicate()});
    StateEntry tied;
    tied.name = "a";
    tied.aliases = {"b"};
    tied.value = x;
    StateDict state;
    state.Add(tied);
    EXPECT_EQ(Load(path, state, options), absl::OkStatus());
    EXPECT_EQ(x.local().ToVector<double>(), std::vector<double>(700 * 301, 1.5));
    tied.aliases = {"c"};
    StateDict other;
    other.Add(tied);
    EXPECT_THAT(std::string(Load(path, other, options).message()),
                HasSubstr("rank 0: Load: 'a' and 'c' are one tensor of the state, and differ"));
  });
}

TEST(ShareReads, OneRankThatCannotReadIsTheSameErrorOnAll) {
  const std::string path = SavedCheckpoint();
  for (const bool share : {false, true}) {
    OnRanks({{"dp_replicate", 3}, {"dp", 2}}, [&](const DeviceMesh& mesh) {
      const int rank = mesh.WorldGroup().rank();
      WatchedFiles files([&](const std::string& file) {
        return rank >= 3 ? absl::UnavailableError(absl::StrCat("no ", file, " for ", rank))
                         : absl::OkStatus();
      });
      Tensors run(mesh, /*has_values=*/false);
      const absl::Status status =
          Load(path, run.state(), {.share_reads = share, .threads = 3, .files = &files});
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3: "));
      EXPECT_THAT(std::string(status.message()), HasSubstr(" for 3"));
      // And the ranks can go on.
      EXPECT_EQ(Load(path, run.state(), {.share_reads = share}), absl::OkStatus());
      run.ExpectValues();
    });
  }
}

TEST(Threads, ReadTheSameBytesOnceHoweverManyThereAre) {
  const std::string path = SavedCheckpoint();
  for (const int threads : {1, 2, 5}) {
    OnRanks({{"dp_replicate", 1}, {"dp", 2}}, [&](const DeviceMesh& mesh) {
      WatchedFiles files;
      Tensors run(mesh, /*has_values=*/false);
      EXPECT_EQ(Load(path, run.state(), {.verify = true, .threads = threads}), absl::OkStatus());
      run.ExpectValues();
      EXPECT_EQ(Load(path, run.state(), {.threads = threads, .files = &files}), absl::OkStatus());
      run.ExpectValues();
      int64_t bytes = 0;
      for (const StateEntry& entry : run.state().entries())
        bytes += std::get<DTensor>(entry.value).local().Bytes();
      // And at most a page between two small boxes.
      EXPECT_GE(files.bytes(), bytes);
      EXPECT_LT(files.bytes(), bytes + 40 * 4096);
    });
  }
  OnRanks({{"dp_replicate", 1}, {"dp", 1}}, [&](const DeviceMesh& mesh) {
    Tensors run(mesh, /*has_values=*/false);
    EXPECT_THAT(std::string(Load(path, run.state(), {.threads = 0}).message()),
                HasSubstr("threads is 0, expected at least 1"));
  });
}

// Of several reads that fail, the first in the order of the files is named.
TEST(Threads, NameTheSameErrorHoweverManyThereAre) {
  const std::string path = SavedCheckpoint();
  const auto message = [&](int threads) {
    std::string text;
    OnRanks({{"dp_replicate", 1}, {"dp", 1}}, [&](const DeviceMesh& mesh) {
      WatchedFiles files([](const std::string& file) {
        return absl::StrContains(file, "-00001-of") ? absl::OkStatus()
                                                    : absl::UnavailableError("no " + file);
      });
      Tensors run(mesh, /*has_values=*/false);
      text = std::string(Load(path, run.state(), {.threads = threads, .files = &files}).message());
    });
    return text;
  };
  const std::string expected = message(1);
  EXPECT_THAT(expected, HasSubstr("shard-00002-of-00004"));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(message(4), expected);
}

}  // namespace
}  // namespace shardmesh::checkpoint
