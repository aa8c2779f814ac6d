// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic and comparisons of two operands, or of one and a scalar.
#include <algorithm>

#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/element_cpu.h"
#include "shardmesh/tensor/cpu/loops_cpu.h"

namespace shardmesh {
namespace {

using cpu::Load;
using RunKernel = void (*)(char* const* data, int64_t n);

// ---- operations --------------------------------------------------------------------------------

struct Add {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE A Apply(A a, A b) {
    return cpu::Plus(a, b);
  }
};
struct Sub {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE A Apply(A a, A b) {
    return cpu::Difference(a, b);
  }
};
struct Mul {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE A Apply(A a, A b) {
    return cpu::Product(a, b);
  }
};
struct Div {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE A Apply(A a, A b) {
    return a / b;
  }
};
struct Maximum {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE A Apply(A a, A b) {
    return cpu::Maximum(a, b);
  }
};
struct Minimum {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE A Apply(A a, A b) {
    return cpu::Minimum(a, b);
  }
};
struct Equal {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE bool Apply(A a, A b) {
    return a == b;
  }
};
struct NotEqual {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE bool Apply(A a, A b) {
    return a != b;
  }
};
struct Less {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE bool Apply(A a, A b) {
    return a < b;
  }
};
struct LessEqual {
  template <typename A>
  static SHARDMESH_ALWAYS_INLINE bool Apply(A a, A b) {
    return a <= b;
  }
};

// ---- loops -------------------------------------------------------------------------------------

// TA and TB are the tensor's element type, or for a scalar the type that is computed in.
template <typename Op, typename TA, typename TB, typename TO>
struct BinaryLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const TA* a, const TB* b, TO* out, int64_t n) {
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<TO>(Op::Apply(Load(a[i]), Load(b[i])));
    }
  }
  static void Kernel(char* const* data, int64_t n) {
    cpu::RunForIsa<BinaryLoop>(reinterpret_cast<const TA*>(data[0]),
                               reinterpret_cast<const TB*>(data[1]), reinterpret_cast<TO*>(data[2]),
                               n);
  }
};

// ---- choice of the loop ------------------------------------------------------------------------

// Which operand is a scalar, of the type that is computed in.
enum class Scalar { kNone, kLeft, kRight };

template <typename Op, typename T, typename TO>
RunKernel KernelOf(Scalar scalar) {
  using A = Accumulator<T>;
  switch (scalar) {
    case Scalar::kNone:
      return BinaryLoop<Op, T, T, TO>::Kernel;
    case Scalar::kLeft:
      return BinaryLoop<Op, A, T, TO>::Kernel;
    case Scalar::kRight:
      break;
  }
  return BinaryLoop<Op, T, A, TO>::Kernel;
}

template <typename Op>
RunKernel ArithmeticKernel(DType dtype, Scalar scalar) {
  return VisitDType(dtype, [&]<typename T>() { return KernelOf<Op, T, T>(scalar); });
}

template <typename Op>
RunKernel ComparisonKernel(DType dtype, Scalar scalar) {
  return VisitDType(dtype, [&]<typename T>() { return KernelOf<Op, T, bool>(scalar); });
}

RunKernel SelectBinary(BinaryOp op, DType dtype, Scalar scalar) {
  switch (op) {
    case BinaryOp::kAdd:
      return ArithmeticKernel<Add>(dtype, scalar);
    case BinaryOp::kSub:
    case BinaryOp::kRSub:
      return ArithmeticKernel<Sub>(dtype, scalar);
    case BinaryOp::kMul:
      return ArithmeticKernel<Mul>(dtype, scalar);
    case BinaryOp::kMaximum:
      return ArithmeticKernel<Maximum>(dtype, scalar);
    case BinaryOp::kMinimum:
      return ArithmeticKernel<Minimum>(dtype, scalar);
    case BinaryOp::kDiv:
    case BinaryOp::kRDiv:
      break;
  }
  return VisitFloating(dtype, Name(op), [&]<typename T>() { return KernelOf<Div, T, T>(scalar); });
}

// a > b as b < a.
RunKernel SelectCompare(CompareOp op, DType dtype, Scalar scalar) {
  switch (op) {
    case CompareOp::kEqual:
      return ComparisonKernel<Equal>(dtype, scalar);
    case CompareOp::kNotEqual:
      return ComparisonKernel<NotEqual>(dtype, scalar);
    case CompareOp::kLess:
    case CompareOp::kGreater:
      return ComparisonKernel<Less>(dtype, scalar);
    case CompareOp::kLessEqual:
    case CompareOp::kGreaterEqual:
      break;
  }
  return ComparisonKernel<LessEqual>(dtype, scalar);
}

bool IsSwapped(BinaryOp op) { return op == BinaryOp::kRSub || op == BinaryOp::kRDiv; }
bool IsSwapped(CompareOp op) { return op == CompareOp::kGreater || op == CompareOp::kGreaterEqual; }

// Runs a two-operand kernel with a run full of the scalar in place of one operand.
template <typename Number>
void RunWithScalar(ExecutionContext& context, RunKernel kernel, bool scalar_is_left,
                   const Tensor& x, Number scalar, Tensor& out) {
  constexpr int64_t kRun = 1024;
  VisitDType(x.dtype(), [&]<typename T>() {
    alignas(64) Accumulator<T> scalars[kRun];
    std::fill_n(scalars, std::min(kRun, x.NumElements()), ConvertTo<Accumulator<T>>(scalar));
    const int place = scalar_is_left ? 0 : 1;
    const int64_t item = SizeOf(x.dtype()), out_item = SizeOf(out.dtype());
    cpu::ForEachRun(context, {&x}, {&out}, [&](char* const* data, int64_t n) {
      char* all[3];
      all[place] = reinterpret_cast<char*>(scalars);
      for (int64_t begin = 0; begin < n; begin += kRun) {
        all[1 - place] = data[0] + begin * item;
        all[2] = data[1] + begin * out_item;
        kernel(all, std::min(kRun, n - begin));
      }
    });
  });
}

// ---- kernels -----------------------------------------------------------------------------------

void Binary(ExecutionContext& context, BinaryOp op, const Tensor& a, const Tensor& b, Tensor& out) {
  const RunKernel kernel = SelectBinary(op, a.dtype(), Scalar::kNone);
  if (IsSwapped(op)) return cpu::ForEachRun(context, {&b, &a}, {&out}, kernel);
  cpu::ForEachRun(context, {&a, &b}, {&out}, kernel);
}

void BinaryScalar(ExecutionContext& context, BinaryOp op, const Tensor& a, double b, Tensor& out) {
  const Scalar place = IsSwapped(op) ? Scalar::kLeft : Scalar::kRight;
  const RunKernel kernel = SelectBinary(op, a.dtype(), place);
  RunWithScalar(context, kernel, IsSwapped(op), a, b, out);
}

void Compare(ExecutionContext& context, CompareOp op, const Tensor& a, const Tensor& b,
             Tensor& out) {
  const RunKernel kernel = SelectCompare(op, a.dtype(), Scalar::kNone);
  if (IsSwapped(op)) return cpu::ForEachRun(context, {&b, &a}, {&out}, kernel);
  cpu::ForEachRun(context, {&a, &b}, {&out}, kernel);
}

void CompareScalar(ExecutionContext& context, CompareOp op, const Tensor& a, double b,
                   Tensor& out) {
  // Compared as a value of a's dtype: a tensor filled with b equals b.
  b = VisitDType(a.dtype(), [&]<typename T>() { return ConvertTo<double>(ConvertTo<T>(b)); });
  const Scalar place = IsSwapped(op) ? Scalar::kLeft : Scalar::kRight;
  const RunKernel kernel = SelectCompare(op, a.dtype(), place);
  RunWithScalar(context, kernel, IsSwapped(op), a, b, out);
}

void CompareInteger(ExecutionContext& context, CompareOp op, const Tensor& a, int64_t b,
                    Tensor& out) {
  const Scalar place = IsSwapped(op) ? Scalar::kLeft : Scalar::kRight;
  const RunKernel kernel = SelectCompare(op, a.dtype(), place);
  RunWithScalar(context, kernel, IsSwapped(op), a, b, out);
}

}  // namespace

void FillBinaryKernels(KernelTable& table) {
  table.binary = Binary;
  table.binary_scalar = BinaryScalar;
  table.compare = Compare;
  table.compare_scalar = CompareScalar;
  table.compare_integer = CompareInteger;
}

}  // namespace shardmesh
