// SPDX-License-Identifier: Apache-2.0
//
// What a cached op on sharded tensors costs above its kernel, with autograd recording: f32 [8, 8]
// on a mesh of four ranks in this process, or with three axes of two ranks, of which two shard the
// rows and the third is replicated; rank 0 timed while the others are idle. The argument is the
// number of axes.
//
//   bazel run --config=bench //dtensor:dispatch_benchmark
//
// `above_kernel_ns` = time of the op on DTensors - time of the same op on this rank's local
// tensors, both in one run.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

// Operands of one benchmark on this rank.
struct Operands {
  explicit Operands(const DeviceMesh& mesh) {
    const auto make = [&](const Dims& shape, Placement placement, uint64_t stream) {
      std::vector<Placement> placements(static_cast<size_t>(mesh.shape().num_axes()), placement);
      if (placements.size() > 1) placements.back() = Replicate();
      DTensor x =
          FromBoxes(mesh, shape, DType::kF32, placements, [&](const Box& box, Tensor& local) {
            ops::RandomNormal(mesh.context(), {.seed = 1, .stream = stream}, {shape, box.begin}, 0,
                              1, local);
          });
      return x.SetRequiresGrad();
    };
    x = make({8, 8}, Shard(0), 1);
    y = make({8, 8}, Shard(0), 2);
    w = make({8, 8}, Replicate(), 3);
    gain = make({8}, Replicate(), 4);
    bias = make({8}, Replicate(), 5);
  }
  DTensor x, y, w, gain, bias;
};

using Distributed = DTensor (*)(const Operands&);
using Local = Tensor (*)(ExecutionContext&, const Operands&);

template <typename F>
double NanosecondsEach(int repetitions, const F& run) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repetitions; ++i) run();
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / repetitions;
}

// The output of what is timed must be right.
void CheckSame(const Tensor& a, const Tensor& b) {
  if (a.ToVector<float>() != b.ToVector<float>()) {
    std::fprintf(stderr, "the op on DTensors and the kernel differ\n");
    std::abort();
  }
}

void Dispatch(benchmark::State& state, Distributed distributed, Local local) {
  const bool is_3d = state.range(0) == 3;
  const MeshShape shape = is_3d ? MeshShape{{"pp", 2}, {"dp", 2}, {"tp", 2}} : MeshShape{{"dp", 4}};
  const absl::Status status = RunRanks(is_3d ? 8 : 4, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, shape);
    if (world.rank() != 0) return;
    const Operands operands(mesh);
    ExecutionContext& context = mesh.context();
    CheckSame(distributed(operands).local(), local(context, operands));
    constexpr int kRepetitions = 2000;
    double op = 1e300, kernel = 1e300;  // The least of several: noise only adds.
    for (auto _ : state) {
      const double ns =
          NanosecondsEach(kRepetitions, [&] { benchmark::DoNotOptimize(distributed(operands)); });
      op = std::min(op, ns);
      kernel = std::min(kernel, NanosecondsEach(kRepetitions, [&] {
                          benchmark::DoNotOptimize(local(context, operands));
                        }));
      state.SetIterationTime(ns * 1e-9);
    }
    state.counters["op_ns"] = op;
    state.counters["kernel_ns"] = kernel;
    state.counters["above_kernel_ns"] = op - kernel;
  });
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

BENCHMARK_CAPTURE(
    Dispatch, add, [](const Operands& o) { return Add(o.x, o.y); },
    [](ExecutionContext& c, const Operands& o) {
      return ops::Binary(c, BinaryOp::kAdd, o.x.local(), o.y.local());
    })
    ->UseManualTime()
    ->Iterations(50)
    ->Arg(1)
    ->Arg(3);
BENCHMARK_CAPTURE(
    Dispatch, mul, [](const Operands& o) { return Mul(o.x, o.y); },
    [](ExecutionContext& c, const Operands& o) {
      return ops::Binary(c, BinaryOp::kMul, o.x.local(), o.y.local());
    })
    ->UseManualTime()
    ->Iterations(50)
    ->Arg(1)
    ->Arg(3);
BENCHMARK_CAPTURE(
    Dispatch, matmul, [](const Operands& o) { return MatMul(o.x, o.w); },
    [](ExecutionContext& c, const Operands& o) { return ops::MatMul(c, o.x.local(), o.w.local()); })
    ->UseManualTime()
    ->Iterations(50)
    ->Arg(1)
    ->Arg(3);
BENCHMARK_CAPTURE(
    Dispatch, layer_norm, [](const Operands& o) { return LayerNorm(o.x, o.gain, o.bias, 1e-5); },
    [](ExecutionContext& c, const Operands& o) {
      return ops::LayerNorm(c, o.x.local(), o.gain.local(), o.bias.local(), 1e-5).y;
    })
    ->UseManualTime()
    ->Iterations(50)
    ->Arg(1)
    ->Arg(3);
BENCHMARK_CAPTURE(
    Dispatch, reshape,
    [](const Operands& o) {
      return Reshape(o.x, {8, 2, 4});
    },
    [](ExecutionContext& c, const Operands& o) {
      return ops::Reshape(c, o.x.local(), {o.x.local().dim(0), 2, 4});
    })
    ->UseManualTime()
    ->Iterations(50)
    ->Arg(1)
    ->Arg(3);
BENCHMARK_CAPTURE(
    Dispatch, concat,
    [](const Operands& o) {
      return Concat({o.x, o.y}, 1);
    },
    [](ExecutionContext& c, const Operands& o) {
      const Tensor parts[] = {o.x.local(), o.y.local()};
      return ops::Concat(c, parts, 1);
    })
    ->UseManualTime()
    ->Iterations(50)
    ->Arg(1)
    ->Arg(3);
BENCHMARK_CAPTURE(
    Dispatch, sum, [](const Operands& o) { return Sum(o.x); },
    [](ExecutionContext& c, const Operands& o) {
      return ops::Reduce(c, ReduceOp::kSum, o.x.local(), {}, /*keepdim=*/false);
    })
    ->UseManualTime()
    ->Iterations(50)
    ->Arg(1)
    ->Arg(3);

}  // namespace
}  // namespace shardmesh
