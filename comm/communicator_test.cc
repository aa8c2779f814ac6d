// SPDX-License-Identifier: Apache-2.0
//
// What a communicator does before it reaches a backend: it checks operands, counts writes and tells
// observers.
#include "shardmesh/comm/communicator.h"

#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/internal/operands.h"
#include "shardmesh/comm/run_ranks.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void OnRanks(int ranks, absl::FunctionRef<void(Communicator&)> fn) {
  EXPECT_EQ(RunRanks(ranks, fn, {.timeout = absl::Seconds(60)}), absl::OkStatus());
}

Tensor Vector(Communicator& world, int64_t count, DType dtype = DType::kF32) {
  const Tensor x = Tensor::Empty(world.context(), {count}, dtype);
  if (count > 0) std::memset(x.mutable_raw_data(), 0, x.Bytes());
  return x;
}

// ---- Operands -------------------------------------------------------------------------------

struct BadCall {
  std::function<void(Communicator&)> call;
  std::string expected;
};

TEST(Operands, ThatDoNotFitAreRefusedByName) {
  const auto list = [](Communicator& w, int64_t a, int64_t b) {
    return std::vector<Tensor>{Vector(w, a), Vector(w, b)};
  };
  const std::vector<BadCall> bad_calls = {
      {[&](Communicator& w) {
         w.AllGather({{Tensor(), list(w, 3, 3)}}, "x");
       },
       "source is no tensor"},
      {[&](Communicator& w) {
         w.AllGather({{Vector(w, 3), {Vector(w, 3)}}}, "x");
       },
       "targets has 1 tensors, expected one for each of the 2 members"},
      {[&](Communicator& w) {
         w.AllGather({{Vector(w, 3), list(w, 4, 4)}}, "x");
       },
       "is f32[4], expected f32[3] as the source"},
      {[&](Communicator& w) {
         w.AllGather({{Vector(w, 3), {Vector(w, 3), Vector(w, 3, DType::kI32)}}}, "x");
       },
       "targets[1] is i32[3], expected dtype f32"},
      {[&](Communicator& w) {
         w.AllGather({{Tensor::Meta({3}, DType::kF32), list(w, 3, 3)}}, "x");
       },
       "source is on meta, expected cpu"},
      {[&](Communicator& w) {
         w.AllGather({{Vector(w, 3), {Vector(w, 1).Expand({3}), Vector(w, 1).Expand({3})}}}, "x");
       },
       "targets[0] is an expanded view and cannot be written"},
      {[&](Communicator& w) {
         w.ReduceScatter({{list(w, 3, 3), Vector(w, 2)}}, ReduceOp::kSum, "x");
       },
       "target is f32[2], expected f32[3] as this rank's own part of the sources"},
      {[&](Communicator& w) {
         w.ReduceScatter({{{Vector(w, 3)}, Vector(w, 3)}}, ReduceOp::kSum, "x");
       },
       "sources has 1 tensors"},
      {[&](Communicator& w) {
         const Tensor flags = Vector(w, 2, DType::kBool);
         w.AllReduce({{flags, flags}}, ReduceOp::kMax, "x");
       },
       "bool cannot be reduced"},
      {[&](Communicator& w) {
         w.AllReduce({{Vector(w, 2), Vector(w, 2, DType::kBF16)}}, ReduceOp::kSum, "x");
       },
       "target is bf16[2], expected f32[2]"},
      {[&](Communicator& w) {
         w.AllToAll({{list(w, 1, 1), {Vector(w, 1)}}}, "x");
       },
       "receives has 1 tensors"},
      {[&](Communicator& w) {
         w.AllToAll({{list(w, 1, 1), list(w, 2, 2)}}, "x");
       },
       "as what it sends itself"},
      {[&](Communicator& w) { w.Broadcast({Vector(w, 1)}, 2, "x"); },
       "root 2 is not a member: ranks are 0 to 1"},
      {[&](Communicator& w) { w.Broadcast({Vector(w, 1)}, -1, "x"); }, "root -1"},
  };
  OnRanks(2, [&](Communicator& world) {
    for (const BadCall& bad : bad_calls) {
      const absl::Status status = Catch([&] { bad.call(world); });
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.expected;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("in group \"world\" (op \"x\")"), HasSubstr(bad.expected)));
    }
    world.Barrier();  // The world is well.
  });
}

TEST(Operands, OfReleasedStorageAreRefused) {
  OnRanks(2, [](Communicator& world) {
    const Tensor x = Vector(world, 5);
    x.storage()->Release("resharded by unit layers.3");
    const absl::Status status = Catch([&] { world.AllReduce({{x, x}}, ReduceOp::kSum, "x"); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("resharded by unit layers.3"));
    world.Barrier();
  });
}

// ---- Observers ------------------------------------------------------------------------------

struct SeenEvent {
  std::string group, kind, op;
  int group_size;
  int64_t bytes_sent;
  friend bool operator==(const SeenEvent&, const SeenEvent&) = default;
  friend void PrintTo(const SeenEvent& e, std::ostream* out) {
    *out << e.kind << " on " << e.group << " of " << e.group_size << " for " << e.op << ": "
         << e.bytes_sent;
  }
};

class Recorder : public CollectiveObserver {
 public:
  void OnCollective(const CollectiveEvent& event) override {
    events.push_back({std::string(event.group), std::string(Name(event.kind)),
                      std::string(event.op), event.group_size, event.bytes_sent});
  }
  SeenEvent Only() const {
    EXPECT_EQ(events.size(), 1u);
    return events.empty() ? SeenEvent() : events[0];
  }
  std::vector<SeenEvent> events;
};

// Observes one call.
SeenEvent EventOf(Communicator& world, absl::FunctionRef<void()> call) {
  Recorder recorder;
  world.AddObserver(&recorder);
  call();
  world.RemoveObserver(&recorder);
  return recorder.Only();
}

TEST(Observer, SeesTheBytesOfEveryKindAsDocumented) {
  OnRanks(3, [](Communicator& world) {
    const int r = world.rank();
    const std::vector<int64_t> counts = {5, 2, 0};
    const auto parts = [&](DType dtype) {
      std::vector<Tensor> tensors;
      for (const int64_t count : counts) tensors.push_back(Vector(world, count, dtype));
      return tensors;
    };
    // All-gather: (p - 1) x own source, here of a batch of bf16 and f64.
    EXPECT_EQ(EventOf(world,
                      [&] {
                        world
                            .AllGather(
                                {{Vector(world, counts[r], DType::kBF16), parts(DType::kBF16)},
                                 {Vector(world, counts[r], DType::kF64), parts(DType::kF64)}},
                                "unit 3")
                            .Wait();
                      }),
              (SeenEvent{"world", "all_gather", "unit 3", 3, 2 * counts[r] * (2 + 8)}));
    // Reduce-scatter: all but the own part.
    EXPECT_EQ(EventOf(world,
                      [&] {
                        world
                            .ReduceScatter({{parts(DType::kF32), Vector(world, counts[r])}},
                                           ReduceOp::kSum, "g")
                            .Wait();
                      }),
              (SeenEvent{"world", "reduce_scatter", "g", 3, (7 - counts[r]) * 4}));
    // All-reduce of 7: chunks of 3, 3, 1; whole - own chunk, then 2 x own chunk.
    const int64_t chunk = r == 2 ? 1 : 3;
    EXPECT_EQ(EventOf(world,
                      [&] {
                        const Tensor x = Vector(world, 7);
                        world.AllReduce({{x, x}}, ReduceOp::kSum, "loss").Wait();
                      }),
              (SeenEvent{"world", "all_reduce", "loss", 3, (7 - chunk + 2 * chunk) * 4}));
    // All-to-all: what leaves.
    EXPECT_EQ(EventOf(world,
                      [&] {
                        AllToAllItem item;
                        for (int m = 0; m < 3; ++m) {
                          item.sends.push_back(Vector(world, 10 * r + m, DType::kI32));
                          item.receives.push_back(Vector(world, 10 * m + r, DType::kI32));
                        }
                        world.AllToAll({item}, "experts").Wait();
                      }),
              (SeenEvent{"world", "all_to_all", "experts", 3, (30 * r + 3 - 11 * r) * 4}));
    EXPECT_EQ(EventOf(world,
                      [&] {
                        world.Broadcast({Vector(world, 4), Vector(world, 1)}, 1, "init").Wait();
                      }),
              (SeenEvent{"world", "broadcast", "init", 3, r == 1 ? 2 * 5 * 4 : 0}));
    EXPECT_EQ(EventOf(world, [&] { world.Barrier("end"); }),
              (SeenEvent{"world", "barrier", "end", 3, 0}));
  });
}

TEST(BytesSent, ArePastThoseOfAnInt) {
  // On meta: sizes without memory. 2^29 f32 are 2^31 bytes, the first number that an int does not
  // hold.
  constexpr int64_t kCount = int64_t{1} << 29;
  ExecutionContext context(Device::Meta());
  const auto of = [&](int64_t count) { return Tensor::Empty(context, {count}, DType::kF32); };
  const internal::CallSite site = {CollectiveKind::kAllReduce,
                                   "op",
                                   "world",
                                   /*rank=*/1,
                                   /*size=*/3,
                                   Device::Meta()};
  const AllGatherItem gather = {of(kCount), {of(5), of(kCount), of(7)}};
  EXPECT_EQ(internal::BytesSent(site, {&gather, 1}), 2 * kCount * 4);
  const ReduceScatterItem scatter = {{of(kCount), of(5), of(kCount + 1)}, of(5)};
  EXPECT_EQ(internal::BytesSent(site, {&scatter, 1}), (2 * kCount + 1) * 4);
  const AllReduceItem sum = {of(kCount + 1), of(kCount + 1)};  // Three chunks of a third.
  EXPECT_EQ(internal::BytesSent(site, {&sum, 1}), (kCount + 1 + (kCount + 1) / 3) * 4);
  const AllToAllItem exchange = {{of(kCount), of(5), of(3)}, {of(1), of(5), of(2)}};
  EXPECT_EQ(internal::BytesSent(site, {&exchange, 1}), (kCount + 3) * 4);
  const Tensor tensors[] = {of(kCount), of(5)};
  EXPECT_EQ(internal::BytesSent(site, tensors, /*root=*/1), 2 * (kCount + 5) * 4);
}

TEST(Observer, SeesAllGroupsOfItsRankButThoseOfOneMember) {
  OnRanks(4, [](Communicator& world) {
    Recorder before;
    world.AddObserver(&before);
    const auto tp = world.Split(world.rank() / 2, 0, "tp");
    const auto alone = world.Split(world.rank(), 0, "alone");
    Recorder of_group;
    tp->AddObserver(&of_group);  // The same list.
    const Tensor x = Vector(world, 2);
    tp->AllReduce({{x, x}}, ReduceOp::kSum, "a").Wait();
    alone->AllReduce({{x, x}}, ReduceOp::kSum, "b").Wait();
    alone->Barrier();
    world.RemoveObserver(&of_group);
    world.Barrier("c");
    EXPECT_EQ(before.events, (std::vector<SeenEvent>{{"tp", "all_reduce", "a", 2, 8},
                                                     {"world", "barrier", "c", 4, 0}}));
    EXPECT_EQ(of_group.events, (std::vector<SeenEvent>{{"tp", "all_reduce", "a", 2, 8}}));
    tp->RemoveObserver(&before);
  });
}

TEST(Observer, SeesNothingOfACallThatIsRefused) {
  OnRanks(2, [](Communicator& world) {
    Recorder recorder;
    world.AddObserver(&recorder);
    EXPECT_THROW(world.AllReduce({{Vector(world, 2), Vector(world, 3)}}, ReduceOp::kSum), Error);
    EXPECT_TRUE(recorder.events.empty());
    world.RemoveObserver(&recorder);
  });
}

// ---- Versions -------------------------------------------------------------------------------

// By how much `post` raises the versions of the storages under `tensors`, when it is posted.
std::vector<int64_t> Rises(const std::vector<Tensor>& tensors, const std::function<Work()>& post) {
  std::vector<int64_t> rises;
  for (const Tensor& x : tensors) rises.push_back(-x.storage()->version());
  Work work = post();
  for (size_t i = 0; i < tensors.size(); ++i) rises[i] += tensors[i].storage()->version();
  work.Wait();
  return rises;
}

TEST(Versions, OfTargetsRiseByOneOnEveryMember) {
  using Counts = std::vector<int64_t>;
  OnRanks(3, [](Communicator& world) {
    const std::vector<int64_t> sizes = {5, 0, 2};  // The second member's part is empty.
    const Tensor whole = Vector(world, 7), own = Vector(world, sizes[world.rank()]);
    const std::vector<Tensor> views = {whole.Narrow(0, 0, 5), whole.Narrow(0, 5, 0),
                                       whole.Narrow(0, 5, 2)};
    std::vector<Tensor> apart;
    for (const int64_t size : sizes) apart.push_back(Vector(world, size));
    // Several targets over one storage count as one.
    EXPECT_EQ(Rises({own, whole}, [&] { return world.AllGather({{own, views}}); }), Counts({0, 1}));
    EXPECT_EQ(Rises({own, apart[0], apart[1], apart[2]},
                    [&] {
                      return world.AllGather({{own, apart}});
                    }),
              Counts({0, 1, 1, 1}));
    EXPECT_EQ(Rises({whole},
                    [&] {
                      return world.AllGather({{views[world.rank()], views}});
                    }),
              Counts({1}));
    EXPECT_EQ(Rises({whole, own},
                    [&] {
                      return world.ReduceScatter({{views, own}}, ReduceOp::kSum);
                    }),
              Counts({0, 1}));
    const Tensor sum = Vector(world, 7), none = Vector(world, 0);
    EXPECT_EQ(Rises({whole, sum, none},
                    [&] {
                      return world.AllReduce({{whole, sum}, {none, none}}, ReduceOp::kSum);
                    }),
              Counts({0, 1, 1}));
    EXPECT_EQ(Rises({sum},
                    [&] {
                      const Tensor head = sum.Narrow(0, 0, 2), tail = sum.Narrow(0, 4, 3);
                      return world.AllReduce({{head, head}, {tail, tail}}, ReduceOp::kSum);
                    }),
              Counts({1}));
    const std::vector<Tensor> sends(3, own);  // Member m sends each member sizes[m] elements.
    EXPECT_EQ(Rises({own, whole},
                    [&] {
                      return world.AllToAll({{sends, views}});
                    }),
              Counts({0, 1}));
    // The root writes nothing; whoever saved the tensor is refused on all members or on none.
    EXPECT_EQ(Rises({whole, none},
                    [&] {
                      return world.Broadcast({whole, none}, /*root=*/1);
                    }),
              Counts({1, 1}));
  });
}

TEST(Versions, RiseInAGroupOfOneAndNotForACallThatIsRefused) {
  OnRanks(2, [](Communicator& world) {
    const auto alone = world.Split(world.rank(), 0, "alone");
    const Tensor x = Vector(world, 3), y = Vector(world, 2);
    const int64_t before = x.storage()->version();
    alone->Broadcast({x}, /*root=*/0).Wait();
    alone->AllReduce({{x, x}}, ReduceOp::kSum).Wait();
    EXPECT_EQ(x.storage()->version(), before + 2);
    EXPECT_THROW(world.AllReduce({{y, x}}, ReduceOp::kSum), Error);
    EXPECT_EQ(x.storage()->version(), before + 2);
  });
}

}  // namespace
}  // namespace shardmesh
