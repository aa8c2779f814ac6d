// SPDX-License-Identifier: Apache-2.0
//
// Each kernel against its limit, on one thread: what moves memory against memcpy (of_memcpy: bytes
// read and written per second, over those of a memcpy of as many bytes in the same run), products
// against OpenBLAS called directly (of_sgemm: operations per second over those of cblas_sgemm of
// the same shape; attention: of a square product). 1 is the limit. Results are checked.
//
//   bazel run --config=bench //tensor:kernels_benchmark
#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <vector>

#include "benchmark/benchmark.h"
#include "cblas.h"
#include "shardmesh/base/check.h"
#include "shardmesh/tensor/cpu/blas_cpu.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

using ::benchmark::State;

const KernelTable& Kernels() { return KernelsFor(Device::Cpu()); }

ExecutionContext& TheContext() {
  static ExecutionContext context;
  return context;
}

Tensor Random(const Dims& shape, DType dtype, uint64_t stream = 1) {
  Tensor x = Tensor::Empty(TheContext(), shape, DType::kF32);
  ops::RandomUniform(TheContext(), {/*seed=*/1, stream}, {shape, Dims::Filled(shape.size(), 0)},
                     -1.0, 1.0, x);
  return ops::Cast(TheContext(), x, dtype);
}

Tensor Like(const Tensor& x) { return Tensor::Empty(TheContext(), x.shape(), x.dtype()); }

double Element(const Tensor& x, int64_t index) {
  return x.TryView({-1})->Narrow(0, index, 1).Item();
}

void ExpectNear(double actual, double expected, double tolerance) {
  SHARDMESH_CHECK(std::fabs(actual - expected) <= tolerance) << actual << " is not " << expected;
}

// Seconds of this thread's processor time: others on the machine matter less than to the clock on
// the wall.
class Stopwatch {
 public:
  double Seconds() const { return Now() - start_; }

 private:
  static double Now() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  double start_ = Now();
};

// The best of several runs.
template <typename Fn>
double SecondsOf(const Fn& fn) {
  double best = 1e9;
  for (int run = 0; run < 9; ++run) {
    const Stopwatch watch;
    fn();
    best = std::min(best, watch.Seconds());
  }
  return best;
}

// Bytes read and written per second by a memcpy that moves `bytes` of them.
double MemcpyRate(int64_t bytes) {
  std::vector<char> from(bytes / 2, 1), to(bytes / 2);
  const int repeats = static_cast<int>(std::max<int64_t>(1, (1 << 22) / bytes));
  const double seconds = SecondsOf([&] {
    for (int i = 0; i < repeats; ++i) {
      std::memcpy(to.data(), from.data(), from.size());
      benchmark::DoNotOptimize(to.data());
      benchmark::ClobberMemory();
    }
  });
  return static_cast<double>(repeats) * static_cast<double>(bytes) / seconds;
}

// Floating-point operations per second of OpenBLAS.
double SgemmRate(int64_t m, int64_t n, int64_t k) {
  cpu::PrepareBlas();
  std::vector<float> a(m * k, 0.5f), b(k * n, 0.25f), c(m * n);
  const auto lda = static_cast<int>(k), ldb = static_cast<int>(n), ldc = static_cast<int>(n);
  const double flops = 2.0 * static_cast<double>(m * n * k);
  const int repeats = static_cast<int>(std::max(1.0, 1e8 / flops));
  const double seconds = SecondsOf([&] {
    for (int i = 0; i < repeats; ++i) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(m),
                  static_cast<int>(n), static_cast<int>(k), 1.0f, a.data(), lda, b.data(), ldb,
                  0.0f, c.data(), ldc);
      benchmark::DoNotOptimize(c.data());
    }
  });
  return repeats * flops / seconds;
}

// `bytes` and `flops` are those of one iteration; `watch` began with the first.
void SetBytes(State& state, const Stopwatch& watch, int64_t bytes) {
  const double total = static_cast<double>(state.iterations() * bytes);
  const double rate = total / watch.Seconds();
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["of_memcpy"] = rate / MemcpyRate(bytes);
}

// Against a product of [m, k] and [k, n].
void SetFlops(State& state, const Stopwatch& watch, double flops, int64_t m, int64_t n, int64_t k) {
  const double rate = static_cast<double>(state.iterations()) * flops / watch.Seconds();
  state.counters["flops"] = rate;
  state.counters["of_sgemm"] = rate / SgemmRate(m, n, k);
}

// In cache, and much larger than any cache.
constexpr int64_t kSmall = 1 << 14, kLarge = 1 << 23;
constexpr int64_t kF32 = static_cast<int64_t>(DType::kF32),
                  kF64 = static_cast<int64_t>(DType::kF64);
constexpr int64_t kBF16 = static_cast<int64_t>(DType::kBF16);

// Arguments: elements, dtype.
struct Run {
  explicit Run(const State& state)
      : elements(state.range(0)),
        dtype(static_cast<DType>(state.range(1))),
        bytes(elements * SizeOf(dtype)) {}
  int64_t elements;
  DType dtype;
  int64_t bytes;
};

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"elements", "dtype"});
  benchmark->ArgsProduct({{kSmall, kLarge}, {kF32, kBF16}});
}

// ---- what a small op costs ---------------------------------------------------------------------

void SmallAdd(State& state) {
  const Tensor a = Random({8, 8}, DType::kF32, 1), b = Random({8, 8}, DType::kF32, 2);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ops::Binary(TheContext(), BinaryOp::kAdd, a, b));
  }
  const Tensor sum = ops::Binary(TheContext(), BinaryOp::kAdd, a, b);
  ExpectNear(Element(sum, 7), Element(a, 7) + Element(b, 7), 1e-6);
}
BENCHMARK(SmallAdd);

void SmallAddRow(State& state) {
  const Tensor a = Random({8, 8}, DType::kF32, 1), b = Random({8}, DType::kF32, 2);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ops::Binary(TheContext(), BinaryOp::kAdd, a, b));
  }
}
BENCHMARK(SmallAddRow);

void SmallSum(State& state) {
  const Tensor a = Random({8, 8}, DType::kF32, 1);
  const int dims[] = {1};
  for (auto _ : state) {
    benchmark::DoNotOptimize(ops::Reduce(TheContext(), ReduceOp::kSum, a, dims, false));
  }
}
BENCHMARK(SmallSum);

void SmallMatMul(State& state) {
  const Tensor a = Random({8, 8}, DType::kF32, 1), b = Random({8, 8}, DType::kF32, 2);
  for (auto _ : state) benchmark::DoNotOptimize(ops::MatMul(TheContext(), a, b));
}
BENCHMARK(SmallMatMul);

void SmallEmpty(State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Tensor::Empty(TheContext(), {8, 8}, DType::kF32));
  }
}
BENCHMARK(SmallEmpty);

// ---- pointwise ---------------------------------------------------------------------------------

void Add(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype, 1), b = Random({run.elements}, run.dtype, 2);
  Tensor out = Like(a);
  const Stopwatch watch;
  for (auto _ : state) Kernels().binary(TheContext(), BinaryOp::kAdd, a, b, out);
  SetBytes(state, watch, 3 * run.bytes);
  ExpectNear(Element(out, 999), Element(a, 999) + Element(b, 999), 1e-2);
}
BENCHMARK(Add)->Apply(Sizes);

void AddRow(State& state) {
  const Run run(state);
  const Dims shape = {run.elements / 1024, 1024};
  const Tensor a = Random(shape, run.dtype, 1), row = Random({1024}, run.dtype, 2);
  const Tensor rows = row.Expand(shape);
  Tensor out = Like(a);
  const Stopwatch watch;
  for (auto _ : state) Kernels().binary(TheContext(), BinaryOp::kAdd, a, rows, out);
  SetBytes(state, watch, 2 * run.bytes);
  ExpectNear(Element(out, 2049), Element(a, 2049) + Element(row, 1), 1e-2);
}
BENCHMARK(AddRow)->Apply(Sizes);

void Scale(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype);
  Tensor out = Like(a);
  const Stopwatch watch;
  for (auto _ : state) Kernels().binary_scalar(TheContext(), BinaryOp::kMul, a, 0.5, out);
  SetBytes(state, watch, 2 * run.bytes);
  ExpectNear(Element(out, 999), 0.5 * Element(a, 999), 1e-6);
}
BENCHMARK(Scale)->Apply(Sizes);

constexpr ElementwiseParams kNoParams = {};

template <ElementwiseOp kOp>
void Unary(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype);
  Tensor out = Like(a);
  const Stopwatch watch;
  const Tensor* const operands[] = {&a};
  for (auto _ : state)
    Kernels().elementwise(TheContext(), kOp, kNoParams.data(), std::span(operands), out);
  SetBytes(state, watch, 2 * run.bytes);
}
BENCHMARK(Unary<ElementwiseOp::kExp>)->Apply(Sizes);
BENCHMARK(Unary<ElementwiseOp::kSilu>)->Apply(Sizes);
BENCHMARK(Unary<ElementwiseOp::kTanh>)->Apply(Sizes);
BENCHMARK(Unary<ElementwiseOp::kRsqrt>)->Apply(Sizes);

void SiluMul(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype, 1), b = Random({run.elements}, run.dtype, 2);
  Tensor out = Like(a);
  const Stopwatch watch;
  const Tensor* const operands[] = {&a, &b};
  for (auto _ : state) {
    Kernels().elementwise(TheContext(), ElementwiseOp::kSiluMul, kNoParams.data(),
                          std::span(operands), out);
  }
  SetBytes(state, watch, 3 * run.bytes);
  const double x = Element(a, 999);
  ExpectNear(Element(out, 999), x / (1 + std::exp(-x)) * Element(b, 999), 1e-2);
}
BENCHMARK(SiluMul)->Apply(Sizes);

void SiluMulBackward(State& state) {
  const Run run(state);
  const Tensor g = Random({run.elements}, run.dtype, 1), a = Random({run.elements}, run.dtype, 2);
  const Tensor b = Random({run.elements}, run.dtype, 3);
  Tensor da = Like(a), db = Like(a);
  const Stopwatch watch;
  const Tensor* const reads[] = {&a, &b};
  Tensor* const outs[] = {&da, &db};
  for (auto _ : state) {
    Kernels().elementwise_gradient(TheContext(), ElementwiseOp::kSiluMul, 0, kNoParams.data(), g,
                                   std::span(reads), std::span(outs));
  }
  SetBytes(state, watch, 5 * run.bytes);
}
BENCHMARK(SiluMulBackward)->Apply(Sizes);

void Less(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype, 1), b = Random({run.elements}, run.dtype, 2);
  Tensor out = Tensor::Empty(TheContext(), {run.elements}, DType::kBool);
  const Stopwatch watch;
  for (auto _ : state) Kernels().compare(TheContext(), CompareOp::kLess, a, b, out);
  SetBytes(state, watch, 2 * run.bytes + run.elements);
  ExpectNear(Element(out, 999), Element(a, 999) < Element(b, 999), 0);
}
BENCHMARK(Less)->Apply(Sizes);

void Where(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype, 1), b = Random({run.elements}, run.dtype, 2);
  const Tensor cond = ops::Compare(TheContext(), CompareOp::kLess, a, b);
  Tensor out = Like(a);
  const Stopwatch watch;
  for (auto _ : state) Kernels().where(TheContext(), cond, a, b, out);
  SetBytes(state, watch, 3 * run.bytes + run.elements);
  ExpectNear(Element(out, 999), std::min(Element(a, 999), Element(b, 999)), 0);
}
BENCHMARK(Where)->Apply(Sizes);

// f32 to bf16 or bf16 to f32.
void Convert(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype);
  const DType other = run.dtype == DType::kF32 ? DType::kBF16 : DType::kF32;
  Tensor out = Tensor::Empty(TheContext(), a.shape(), other);
  const Stopwatch watch;
  for (auto _ : state) Kernels().copy(TheContext(), a, out);
  SetBytes(state, watch, run.bytes + out.Bytes());
  ExpectNear(Element(out, 999), Element(a, 999), 1e-2);
}
BENCHMARK(Convert)->Apply(Sizes);

// The last two dims of [heads, 64, 64 k] trade places.
void CopyTransposed(State& state) {
  const Run run(state);
  const Tensor a = Random({4, 64, run.elements / 256}, run.dtype);
  const Tensor from = a.Transpose(1, 2);
  Tensor out = Tensor::Empty(TheContext(), from.shape(), run.dtype);
  const Stopwatch watch;
  for (auto _ : state) Kernels().copy(TheContext(), from, out);
  SetBytes(state, watch, 2 * run.bytes);
  ExpectNear(Element(out, 65), a.Narrow(0, 0, 1).Narrow(1, 1, 1).Narrow(2, 1, 1).Item(), 0);
}
BENCHMARK(CopyTransposed)->Apply(Sizes);

// f32 += dtype, as gradients are accumulated.
void Accumulate(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype);
  Tensor out = ops::Zeros(TheContext(), a.shape(), DType::kF32);
  const Stopwatch watch;
  for (auto _ : state) Kernels().accumulate(TheContext(), a, out);
  SetBytes(state, watch, run.bytes + 2 * out.Bytes());
}
BENCHMARK(Accumulate)->Apply(Sizes);

// ---- reductions --------------------------------------------------------------------------------

// Over the dims of `mask` of [.., 16, 1024].
template <uint32_t kMask>
void Sum(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements / 16384, 16, 1024}, run.dtype);
  Dims shape = a.shape();
  for (int dim = 0; dim < 3; ++dim) {
    if (kMask >> dim & 1) shape[dim] = 1;
  }
  Tensor out = Tensor::Empty(TheContext(), shape, DType::kF32);
  const Stopwatch watch;
  for (auto _ : state) Kernels().reduce(TheContext(), ReduceOp::kSum, a, kMask, out);
  SetBytes(state, watch, run.bytes);
}
BENCHMARK(Sum<1>)->Apply(Sizes);
BENCHMARK(Sum<2>)->Apply(Sizes);
BENCHMARK(Sum<3>)->Apply(Sizes);
BENCHMARK(Sum<4>)->Apply(Sizes);
BENCHMARK(Sum<7>)->Apply(Sizes);

void Max(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements / 1024, 1024}, run.dtype);
  Tensor out = Tensor::Empty(TheContext(), {run.elements / 1024, 1}, run.dtype);
  const Stopwatch watch;
  for (auto _ : state) Kernels().reduce(TheContext(), ReduceOp::kMax, a, 2, out);
  SetBytes(state, watch, run.bytes);
}
BENCHMARK(Max)->Apply(Sizes);

void SumOfSquares(State& state) {
  const Run run(state);
  const Tensor a = Random({run.elements}, run.dtype);
  Tensor out = Tensor::Empty(TheContext(), {}, DType::kF64);
  const Stopwatch watch;
  for (auto _ : state) Kernels().sum_of_squares(TheContext(), a, out);
  SetBytes(state, watch, run.bytes);
  ExpectNear(out.Item() / static_cast<double>(run.elements), 1.0 / 3, 0.02);
}
BENCHMARK(SumOfSquares)->Apply(Sizes);

// ---- products ----------------------------------------------------------------------------------

// Arguments: m, n, k, dtype; a is read as stored or, with the last one, transposed.
void MatMul(State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const auto dtype = static_cast<DType>(state.range(3));
  const bool transposed = state.range(4) != 0;
  const Tensor a = transposed ? Random({k, m}, dtype, 1).Transpose(0, 1) : Random({m, k}, dtype, 1);
  const Tensor b = Random({k, n}, dtype, 2);
  Tensor out = Tensor::Empty(TheContext(), {m, n}, dtype);
  const Stopwatch watch;
  for (auto _ : state) Kernels().matmul(TheContext(), a, b, /*accumulate=*/false, out);
  SetFlops(state, watch, 2.0 * static_cast<double>(m * n * k), m, n, k);
  double expected = 0;
  for (int64_t i = 0; i < k; ++i) {
    expected += a.Narrow(0, 0, 1).Narrow(1, i, 1).Item() * b.Narrow(0, i, 1).Narrow(1, 1, 1).Item();
  }
  ExpectNear(Element(out, 1), expected, (dtype == DType::kF32 ? 1e-4 : 2e-2) * std::sqrt(k));
}
BENCHMARK(MatMul)
    ->ArgNames({"m", "n", "k", "dtype", "a_transposed"})
    ->ArgsProduct({{1024}, {1024}, {1024}, {kF32, kF64, kBF16}, {0, 1}})
    ->Args({2048, 384, 128, kF32, 0})
    ->Args({2048, 384, 128, kBF16, 0})
    ->Args({128, 384, 2048, kF32, 1})
    ->Args({64, 64, 64, kF32, 0});

// Arguments: sequence, dtype. Eight query heads of 64 on four key heads, causal.
void Attention(State& state) {
  const int64_t sequence = state.range(0);
  const auto dtype = static_cast<DType>(state.range(1));
  const Tensor q = Random({1, 8, sequence, 64}, dtype, 1),
               k = Random({1, 4, sequence, 64}, dtype, 2);
  const Tensor v = Random({1, 4, sequence, 64}, dtype, 3);
  Tensor out = Like(q), lse = Tensor::Empty(TheContext(), {1, 8, sequence}, DType::kF32);
  const Stopwatch watch;
  for (auto _ : state) Kernels().attention(TheContext(), q, k, v, true, 0.125, out, lse);
  // Two products over half of the square.
  const double flops = 2.0 * 2 * 8 * 64 * static_cast<double>(sequence * sequence) / 2;
  SetFlops(state, watch, flops, 512, 512, 512);
  ExpectNear(Element(out, 3), Element(v, 3), 1e-6);  // The first position sees itself alone.
}
BENCHMARK(Attention)->ArgNames({"sequence", "dtype"})->ArgsProduct({{128, 1024}, {kF32, kBF16}});

void AttentionBackward(State& state) {
  const int64_t sequence = state.range(0);
  const auto dtype = static_cast<DType>(state.range(1));
  const Tensor q = Random({1, 8, sequence, 64}, dtype, 1),
               k = Random({1, 4, sequence, 64}, dtype, 2);
  const Tensor v = Random({1, 4, sequence, 64}, dtype, 3), g = Random(q.shape(), dtype, 4);
  const ops::AttentionResult forward = ops::Attention(TheContext(), q, k, v, true, 0.125);
  Tensor dq = Like(q), dk = Like(k), dv = Like(v);
  const Stopwatch watch;
  for (auto _ : state) {
    Kernels().attention_backward(TheContext(), g, q, k, v, forward.out, forward.statistics, true,
                                 0.125, dq, dk, dv);
  }
  const double flops = 2.0 * 5 * 8 * 64 * static_cast<double>(sequence * sequence) / 2;
  SetFlops(state, watch, flops, 512, 512, 512);
}
BENCHMARK(AttentionBackward)
    ->ArgNames({"sequence", "dtype"})
    ->ArgsProduct({{128, 1024}, {kF32, kBF16}});

// ---- rows and lookups --------------------------------------------------------------------------

void Softmax(State& state) {
  const Run run(state);
  const Tensor x = Random({run.elements / 1024, 1024}, run.dtype);
  Tensor y = Like(x);
  const Stopwatch watch;
  for (auto _ : state) Kernels().softmax(TheContext(), x, /*log=*/false, y);
  SetBytes(state, watch, 2 * run.bytes);
  const int dims[] = {1};
  ExpectNear(Element(ops::Reduce(TheContext(), ReduceOp::kSum, y, dims, false), 0), 1, 1e-2);
}
BENCHMARK(Softmax)->Apply(Sizes);

void RmsNorm(State& state) {
  const Run run(state);
  const Tensor x = Random({run.elements / 1024, 1024}, run.dtype, 1),
               w = Random({1024}, run.dtype, 2);
  Tensor y = Like(x), inv_rms = Tensor::Empty(TheContext(), {run.elements / 1024}, DType::kF32);
  const Stopwatch watch;
  for (auto _ : state) Kernels().rms_norm(TheContext(), x, w, 1e-6, y, inv_rms);
  SetBytes(state, watch, 2 * run.bytes);
  ExpectNear(Element(y, 5), Element(x, 5) * Element(inv_rms, 0) * Element(w, 5), 2e-2);
}
BENCHMARK(RmsNorm)->Apply(Sizes);

void RmsNormBackward(State& state) {
  const Run run(state);
  const Tensor x = Random({run.elements / 1024, 1024}, run.dtype, 1),
               w = Random({1024}, run.dtype, 2);
  const Tensor g = Random(x.shape(), run.dtype, 3);
  const ops::NormResult forward = ops::RmsNorm(TheContext(), x, w, 1e-6);
  Tensor dx = Like(x), dw = Like(w);
  const Stopwatch watch;
  for (auto _ : state) {
    Kernels().rms_norm_backward(TheContext(), g, x, w, forward.inv_std, dx, false, dw);
  }
  SetBytes(state, watch, 3 * run.bytes);
}
BENCHMARK(RmsNormBackward)->Apply(Sizes);

void Rotary(State& state) {
  const Run run(state);
  const int64_t sequence = run.elements / (8 * 64);
  const Tensor x = Random({1, 8, sequence, 64}, run.dtype, 1);
  const Tensor cos = Random({sequence, 32}, DType::kF32, 2),
               sin = Random({sequence, 32}, DType::kF32, 3);
  Tensor out = Like(x);
  const Stopwatch watch;
  for (auto _ : state) Kernels().rotary(TheContext(), x, cos, sin, /*inverse=*/false, out);
  SetBytes(state, watch, 2 * run.bytes + 2 * cos.Bytes());
  const double expected = Element(x, 0) * Element(cos, 0) - Element(x, 32) * Element(sin, 0);
  ExpectNear(Element(out, 0), expected, 1e-2);
}
BENCHMARK(Rotary)->Apply(Sizes);

void Embedding(State& state) {
  const Run run(state);
  const int64_t rows = run.elements / 256;
  const Tensor table = Random({1000, 256}, run.dtype);
  std::vector<int64_t> ids(rows);
  for (int64_t i = 0; i < rows; ++i) ids[i] = i * 7919 % 1000;
  const Tensor index = Tensor::FromValues<int64_t>(TheContext(), {rows}, ids);
  Tensor out = Tensor::Empty(TheContext(), {rows, 256}, run.dtype);
  const Stopwatch watch;
  for (auto _ : state) Kernels().embedding(TheContext(), index, table, 0, out);
  SetBytes(state, watch, 2 * run.bytes);
  ExpectNear(Element(out, 256), Element(table, 919 * 256), 0);
}
BENCHMARK(Embedding)->Apply(Sizes);

// ---- optimizer and random numbers --------------------------------------------------------------

void AdamW(State& state) {
  const Run run(state);
  const Tensor grad = Random({run.elements}, run.dtype);
  Tensor p = ops::Zeros(TheContext(), grad.shape(), DType::kF32);
  Tensor m = ops::Clone(TheContext(), p), v = ops::Clone(TheContext(), p);
  AdamWStep options{1e-3, 0.9, 0.95, 1e-8, 0.1, 1};
  const Stopwatch watch;
  for (auto _ : state) {
    Kernels().adamw(TheContext(), options, grad, p, m, v);
    ++options.step;
  }
  SetBytes(state, watch, run.bytes + 6 * p.Bytes());
}
BENCHMARK(AdamW)->Apply(Sizes);

void RandomNormal(State& state) {
  const Run run(state);
  Tensor out = Tensor::Empty(TheContext(), {run.elements}, run.dtype);
  const RandomBox box{out.shape(), {0}};
  const Stopwatch watch;
  for (auto _ : state) Kernels().random_normal(TheContext(), {1, 1}, box, 0.0, 1.0, out);
  SetBytes(state, watch, run.bytes);
}
BENCHMARK(RandomNormal)->Apply(Sizes);

}  // namespace
}  // namespace shardmesh
