// SPDX-License-Identifier: Apache-2.0
//
// In-process collectives against plain loops that move the same bytes.
//
//   bazel run --config=bench //comm:collectives_benchmark
//
// Arguments are ranks and elements of a shard (f32; an all-reduce has a tensor of one shard a
// rank). Time is that of one collective, posted and waited for, on rank 0. `of_reference` is the
// time of the reference, taken in the same run in turns with the collective, over that time. The
// reference, by all threads at once, on memory of their own:
//   all-gather      memcpy of the p - 1 shards that it writes (it is in place)
//   reduce-scatter  a loop that reads p shards and writes one
//   all-reduce      that loop, then memcpy of p - 1 shards
// bytes_per_second counts what all ranks together write: p (p - 1), p and p^2 shards.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "shardmesh/comm/run_ranks.h"

namespace shardmesh {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

enum class Kind { kAllGather, kReduceScatter, kAllReduce };

// Exact in f32, different for every rank, shard and place.
float ValueOf(int rank, int shard, int64_t i) {
  return static_cast<float>((rank * 7 + shard * 3 + i) % 1021 - 500);
}

// One rank's buffers, the collective and its reference on them.
class Subject {
 public:
  Subject(Communicator& world, Kind kind, int64_t elements)
      : world_(world), kind_(kind), p_(world.size()), elements_(elements) {
    // Sources: this rank's p shards. Target: p shards or one. The reference has the same again.
    sources_ = Tensor::Empty(world.context(), {p_, elements}, DType::kF32);
    target_ = Tensor::Empty(world.context(), {p_, elements}, DType::kF32);
    local_ = Tensor::Empty(world.context(), {p_, elements}, DType::kF32);
    local_target_ = Tensor::Empty(world.context(), {p_, elements}, DType::kF32);
    for (int shard = 0; shard < p_; ++shard) {
      for (int64_t i = 0; i < elements; ++i) {
        for (const Tensor& buffer : {sources_, local_, target_, local_target_})
          MutableShard(buffer, shard)[i] = ValueOf(world.rank(), shard, i);
      }
    }
  }

  void RunCollective() {
    if (kind_ == Kind::kAllReduce) {
      world_.AllReduce({{sources_, target_}}, ReduceOp::kSum, "bench").Wait();
    } else if (kind_ == Kind::kAllGather) {
      AllGatherItem item;
      for (int m = 0; m < p_; ++m) item.targets.push_back(target_.Narrow(0, m, 1));
      item.source = item.targets[world_.rank()];
      world_.AllGather({std::move(item)}, "bench").Wait();
    } else {
      ReduceScatterItem item;
      for (int m = 0; m < p_; ++m) item.sources.push_back(sources_.Narrow(0, m, 1));
      item.target = target_.Narrow(0, 0, 1);
      world_.ReduceScatter({std::move(item)}, ReduceOp::kSum, "bench").Wait();
    }
  }

  void RunReference() {
    if (kind_ != Kind::kAllGather) p_ == 2 ? SumShards<2>() : SumShards<4>();
    if (kind_ != Kind::kReduceScatter) {
      std::memcpy(MutableShard(local_target_, 1), Shard(local_, 1),
                  (p_ - 1) * elements_ * sizeof(float));
    }
    benchmark::ClobberMemory();
  }

  bool IsRight() const {
    const auto sum = [&](int shard, int64_t i) {
      float value = 0;
      for (int m = 0; m < p_; ++m) value += ValueOf(m, shard, i);
      return value;
    };
    for (int64_t i = 0; i < elements_; ++i) {
      for (int s = 0; s < p_; ++s) {
        if (kind_ == Kind::kAllGather && Shard(target_, s)[i] != ValueOf(s, s, i)) return false;
        if (kind_ == Kind::kAllReduce && Shard(target_, s)[i] != sum(s, i)) return false;
      }
      if (kind_ == Kind::kReduceScatter && Shard(target_, 0)[i] != sum(world_.rank(), i))
        return false;
    }
    return true;
  }

 private:
  const float* Shard(const Tensor& tensor, int shard) const {
    return tensor.data<float>() + shard * elements_;
  }
  float* MutableShard(const Tensor& tensor, int shard) const {
    return tensor.mutable_data<float>() + shard * elements_;
  }

  template <int P>
  void SumShards() {
    float* const out = MutableShard(local_target_, 0);
    const float* in[P];
    for (int s = 0; s < P; ++s) in[s] = Shard(local_, s);
    for (int64_t i = 0; i < elements_; ++i) {
      float value = in[0][i];
      for (int s = 1; s < P; ++s) value += in[s][i];
      out[i] = value;
    }
  }

  Communicator& world_;
  Kind kind_;
  int p_;
  int64_t elements_;
  Tensor sources_, target_, local_, local_target_;
};

struct Times {
  Seconds collective{0};
  Seconds reference{0};
  bool is_right = true;
};

// `rounds` times `calls` collectives, then as many references.
Times Measure(Kind kind, int ranks, int64_t elements, int rounds, int calls) {
  Times times;
  std::vector<char> is_right(ranks);
  const absl::Status status = RunRanks(ranks, [&](Communicator& world) {
    Subject subject(world, kind, elements);
    const auto timed = [&](Seconds& total, auto&& body) {
      world.Barrier();
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < calls; ++i) body();
      world.Barrier();
      if (world.rank() == 0) total += Clock::now() - begin;
    };
    Seconds warm_up;
    timed(warm_up, [&] { subject.RunCollective(); });
    timed(warm_up, [&] { subject.RunReference(); });
    for (int round = 0; round < rounds; ++round) {
      timed(times.collective, [&] { subject.RunCollective(); });
      timed(times.reference, [&] { subject.RunReference(); });
    }
    is_right[world.rank()] = subject.IsRight();
  });
  times.is_right = status.ok() && std::count(is_right.begin(), is_right.end(), 0) == 0;
  return times;
}

void Run(benchmark::State& state, Kind kind) {
  const auto ranks = static_cast<int>(state.range(0));
  const int64_t elements = state.range(1);
  const int calls = static_cast<int>(std::clamp<int64_t>((1 << 16) / elements, 1, 200));
  const int rounds = static_cast<int>(std::clamp<int64_t>((1 << 22) / elements / calls, 8, 100));
  Times total;
  while (state.KeepRunningBatch(rounds * calls)) {
    const Times times = Measure(kind, ranks, elements, rounds, calls);
    if (!times.is_right) return state.SkipWithError("the collective failed or its result is wrong");
    state.SetIterationTime(times.collective.count());
    total.collective += times.collective;
    total.reference += times.reference;
  }
  state.counters["of_reference"] = total.reference.count() / total.collective.count();
  const int64_t shards = kind == Kind::kAllGather   ? ranks * (ranks - 1)
                         : kind == Kind::kAllReduce ? ranks * ranks
                                                    : ranks;
  state.SetBytesProcessed(state.iterations() * shards * elements *
                          static_cast<int64_t>(sizeof(float)));
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"ranks", "elements"})
      ->ArgsProduct({{2, 4}, {64, 1 << 12, 1 << 16, 1 << 19, 1 << 22}});
  benchmark->UseManualTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(Run, AllGather, Kind::kAllGather)->Apply(Sizes);
BENCHMARK_CAPTURE(Run, ReduceScatter, Kind::kReduceScatter)->Apply(Sizes);
BENCHMARK_CAPTURE(Run, AllReduce, Kind::kAllReduce)->Apply(Sizes);

}  // namespace
}  // namespace shardmesh
