// SPDX-License-Identifier: Apache-2.0
//
// Kernels give the same bits whatever the processor: this program runs itself with less of it, by
// SHARDMESH_ISA for the kernels and by glibc's tunables for the C library, and compares. (Products
// of matrices are BLAS's own.)
#include <stdio.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/testing/pointwise_reference.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh {
namespace {

using testing::Bits;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Values;

// Mixed signs and sizes; a vector body and a tail.
Tensor Operand(ExecutionContext& context, DType dtype, uint64_t seed) {
  std::vector<double> values = testing::RandomValues(61 * 37, seed);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= i % 5 == 0 ? 300 : i % 3 == 0 ? 0.01 : 4;
  return MakeTensor(context, {61, 37}, dtype, values);
}

std::map<std::string, std::string> BitsOfKernels() {
  std::map<std::string, std::string> bits;
  ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const std::string suffix = " " + std::string(Name(dtype));
    const Tensor x = Operand(context, dtype, 1), grad = Operand(context, dtype, 2);
    const Tensor w = RandomTensor(context, {37}, dtype, 3);
    for (int i = 0; i < NumUnaryOps(); ++i) {
      const auto op = static_cast<ElementwiseOp>(i);
      const ElementwiseRow& row = RowOf(op);
      // Other rows may call libm (kernel_table.h).
      const bool is_own =
          row.Has(elementwise::kVector) || op == ElementwiseOp::kSin || op == ElementwiseOp::kCos;
      if (row.has_params || !is_own) continue;
      const Tensor y = ops::Unary(context, op, x);
      bits[std::string(Name(op)) + suffix] =
          Bits(y) + Bits(testing::UnaryBackward(context, op, grad, x, y));
    }
    const auto [dgate, dup] = testing::SiluMulBackward(context, grad, x, x);
    bits["silu_mul" + suffix] = Bits(testing::SiluMul(context, x, grad)) + Bits(dgate) + Bits(dup);
    for (const bool log : {false, true}) {
      const Tensor y = ops::Softmax(context, x, -1, log);
      bits[(log ? "log_softmax" : "softmax") + suffix] =
          Bits(y) + Bits(ops::SoftmaxBackward(context, grad, y, -1, log));
    }
    const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const Tensor targets = MakeTensor(context, {61}, DType::kI64, std::vector<double>(61, 5));
    const Tensor max =
        ops::Cast(context, ops::Reduce(context, ReduceOp::kMax, x, std::vector{1}, false), wide);
    const auto terms = ops::CrossEntropyTerms(context, x, targets, 0, max);
    bits["cross_entropy" + suffix] =
        Bits(terms.sum_exp) + Bits(terms.picked) +
        Bits(ops::CrossEntropyBackward(context, x, targets, 0, max, terms.sum_exp, max, -1));
    const auto rms = ops::RmsNorm(context, x, w, 1e-5);
    const auto layer = ops::LayerNorm(context, x, w, w, 1e-5);
    Tensor dx = Tensor::Empty(context, x.shape(), dtype), dw = Tensor::Empty(context, {37}, dtype),
           db = Tensor::Empty(context, {37}, dtype);
    ops::RmsNormBackward(context, grad, x, w, rms.inv_std, dx, false, dw);
    bits["rms_norm" + suffix] = Bits(rms.y) + Bits(dx) + Bits(dw);
    ops::LayerNormBackward(context, grad, x, w, layer.mean, layer.inv_std, dx, false, dw, db);
    bits["layer_norm" + suffix] = Bits(layer.y) + Bits(dx) + Bits(dw) + Bits(db);
    bits["sum" + suffix] = Bits(ops::Reduce(context, ReduceOp::kSum, x, {}, false));
    if (dtype == DType::kBF16) continue;
    Tensor p = ops::Clone(context, x), m = ops::Clone(context, grad),
           v = ops::Unary(context, ElementwiseOp::kSquare, grad);
    ops::AdamW(
        context,
        {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.97, .eps = 1e-8, .weight_decay = 0.1, .step = 1237},
        grad, p, m, v);
    bits["adamw" + suffix] = Bits(p) + Bits(m) + Bits(v);
  }
  return bits;
}

constexpr char kMark[] = "bits of ";

// Run by the test below, in a process of its own.
TEST(KernelBits, DISABLED_Print) {
  for (const auto& [name, bits] : BitsOfKernels())
    printf("%s%s=%s\n", kMark, name.c_str(), bits.c_str());
}

std::map<std::string, std::string> BitsWith(const std::string& environment) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  EXPECT_GT(length, 0);
  const std::string command =
      "env -u XML_OUTPUT_FILE -u TEST_PREMATURE_EXIT_FILE " + environment + " " +
      std::string(path, static_cast<size_t>(length)) +
      " --gtest_also_run_disabled_tests --gtest_filter=KernelBits.DISABLED_Print";
  FILE* pipe = popen(command.c_str(), "r");
  std::map<std::string, std::string> bits;
  char line[1024];
  while (fgets(line, sizeof(line), pipe) != nullptr) {
    const std::string text = line;
    if (text.rfind(kMark, 0) != 0) continue;
    const size_t equals = text.find('=');
    const size_t begin = sizeof(kMark) - 1;
    bits[text.substr(begin, equals - begin)] = text.substr(equals + 1, text.size() - equals - 2);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return bits;
}

TEST(KernelBits, AreTheSameWithLessOfTheProcessor) {
  const auto expected = BitsOfKernels();
  ASSERT_GT(expected.size(), 50u);
  const std::string no_fma =
      "GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2_Usable,-AVX2,-AVX512F ";
  for (const std::string& environment :
       {std::string(), no_fma, no_fma + "SHARDMESH_ISA=avx2", std::string("SHARDMESH_ISA=baseline"),
        no_fma + "SHARDMESH_ISA=baseline"}) {
    EXPECT_EQ(BitsWith(environment), expected) << environment;
  }
}

}  // namespace
}  // namespace shardmesh
