// SPDX-License-Identifier: Apache-2.0
//
// What a step costs above its kernel: many small parameters, where the bookkeeping shows, and a few
// large ones, where memory decides. f32, one rank.
//
//   bazel run --config=bench //optim:optimizer_benchmark
//
// `above_kernel_ns` = time of a step per parameter - time of the kernel on the same tensors, both
// in one run. `GB/s` counts 7 passes of AdamW (read p, m, v, g; write p, m, v) and 5 of Sgd.
#include <benchmark/benchmark.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/sgd.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

using Clock = std::chrono::steady_clock;

struct Setup {
  Setup(const DeviceMesh& mesh, int count, int64_t elements) : context(mesh.context()) {
    for (int i = 0; i < count; ++i) {
      nn::Parameter parameter({elements}, DType::kF32, nn::Init::Normal(0, 1));
      parameter.set_name(absl::StrCat("p", i));
      parameter.Place(mesh, Layout::Replicated(mesh.shape(), {elements}));
      parameter.Materialize(/*seed=*/1);
      parameters.push_back(parameter);
      gradients.push_back(ops::Full(context, {elements}, DType::kF32, 0.01 * (i % 7 - 3)));
      m.push_back(ops::Zeros(context, {elements}, DType::kF32));
      v.push_back(ops::Zeros(context, {elements}, DType::kF32));
    }
  }

  void SetGradients() {
    for (size_t i = 0; i < parameters.size(); ++i) {
      DTensor leaf = parameters[i].data();
      leaf.SetGrad(DTensor(leaf.mesh(), leaf.layout(), gradients[i]));
    }
  }

  ExecutionContext& context;
  std::vector<nn::Parameter> parameters;
  std::vector<Tensor> gradients, m, v;
};

void KernelStep(const AdamW&, Setup& setup) {
  for (size_t i = 0; i < setup.parameters.size(); ++i) {
    Tensor p = setup.parameters[i].data().local();
    ops::AdamW(setup.context, {1e-3, 0.9, 0.999, 1e-8, 0.01, 1}, setup.gradients[i], p, setup.m[i],
               setup.v[i]);
  }
}

void KernelStep(const Sgd&, Setup& setup) {
  for (size_t i = 0; i < setup.parameters.size(); ++i) {
    Tensor p = setup.parameters[i].data().local();
    ops::Sgd(setup.context, 1e-3, 0.9, 0.01, /*first=*/false, setup.gradients[i], p, setup.m[i]);
  }
}

AdamW Make(std::vector<nn::Parameter> parameters, const AdamW*) {
  return AdamW(std::move(parameters), {.lr = 1e-3});
}
Sgd Make(std::vector<nn::Parameter> parameters, const Sgd*) {
  return Sgd(std::move(parameters), {.lr = 1e-3, .momentum = 0.9, .weight_decay = 0.01});
}

// Arguments: number of parameters, elements of each.
template <typename Optimizer>
void Step(benchmark::State& state, double passes) {
  const auto count = static_cast<int>(state.range(0));
  const int64_t elements = state.range(1);
  ThrowIfError(RunRanks(1, [&](Communicator& world) {
    Setup setup(DeviceMesh::Create(world, {{"dp", 1}}), count, elements);
    Optimizer optimizer = Make(setup.parameters, static_cast<const Optimizer*>(nullptr));
    setup.SetGradients();
    optimizer.Step();
    double in_steps = 0, in_kernels = 0;
    for (auto _ : state) {
      setup.SetGradients();
      const Clock::time_point begin = Clock::now();
      optimizer.Step();
      const Clock::time_point middle = Clock::now();
      KernelStep(optimizer, setup);
      const std::chrono::duration<double> step = middle - begin, kernel = Clock::now() - middle;
      in_steps += step.count();
      in_kernels += kernel.count();
      state.SetIterationTime(step.count());
    }
    const auto steps = static_cast<double>(state.iterations());
    state.counters["above_kernel_ns"] = (in_steps - in_kernels) / steps / count * 1e9;
    state.counters["GB/s"] =
        passes * 4 * static_cast<double>(elements) * count * steps / in_steps * 1e-9;
  }));
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({500, 100})->Args({4, 1 << 20})->UseManualTime();
}

void AdamWStep(benchmark::State& state) { Step<AdamW>(state, /*passes=*/7); }
void SgdStep(benchmark::State& state) { Step<Sgd>(state, /*passes=*/5); }
BENCHMARK(AdamWStep)->Apply(Sizes);
BENCHMARK(SgdStep)->Apply(Sizes);

}  // namespace
}  // namespace shardmesh::optim

BENCHMARK_MAIN();
