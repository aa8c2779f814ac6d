// SPDX-License-Identifier: Apache-2.0
//
// Ops and their gradients against the numbers of PyTorch (tests/testdata/golden/README.md), in f64
// and f32, on one rank and on two with the operands split in several ways.
//
// Cases of ops or attributes that do not exist here are listed in NotThere() below.
#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

using Json = nlohmann::json;
using Operands = std::vector<DTensor>;

constexpr char kFolder[] = "tests/testdata/golden/ops/";

// ---- the ops by PyTorch's names -----------------------------------------------------------------

// Applies one op; no results if these attributes do not exist.
using Apply = std::function<Operands(const Json& attributes, const Operands& operands)>;

std::vector<int> DimsOf(const Json& attributes) {
  return attributes.at("dim").get<std::vector<int>>();
}

Apply Unary(DTensor (*op)(const DTensor&)) {
  return [op](const Json&, const Operands& x) { return Operands{op(x[0])}; };
}

Apply Binary(DTensor (*op)(const DTensor&, const DTensor&)) {
  return [op](const Json&, const Operands& x) { return Operands{op(x[0], x[1])}; };
}

Apply Comparison(CompareOp op) {
  return [op](const Json&, const Operands& x) { return Operands{Compare(op, x[0], x[1])}; };
}

Apply Reduction(DTensor (*op)(const DTensor&, const std::vector<int>&, bool)) {
  return [op](const Json& a, const Operands& x) {
    return Operands{op(x[0], DimsOf(a), a.at("keepdim"))};
  };
}

Operands AddScaled(const Json& a, const Operands& x) {
  return {Add(x[0], a.contains("alpha") ? Mul(x[1], a.at("alpha").get<double>()) : x[1])};
}

Operands Clamp(const Json& a, const Operands& x) {
  DTensor y = x[0];
  if (a.contains("min")) y = Maximum(y, a.at("min").get<double>());
  if (a.contains("max")) y = Minimum(y, a.at("max").get<double>());
  return {y};
}

Operands PowScalar(const Json& a, const Operands& x) {
  const double exponent = a.at("exponent");
  if (exponent == 2) return {Square(x[0])};
  if (exponent == -0.5) return {Rsqrt(x[0])};
  return {};
}

Operands CastTo(const Json& a, const Operands& x) {
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64, DType::kBool}) {
    if (std::string(Name(dtype)) == a.at("dtype")) return {Cast(x[0], dtype)};
  }
  return {};
}

Operands MatrixProduct(const Json& a, const Operands& x) {
  if (x[0].num_dims() < 2 || x[1].num_dims() < 2) return {};
  const auto turned = [&](const char* name, const DTensor& t) {
    return a.value(name, false) ? Transpose(t, -2, -1) : t;
  };
  return {MatMul(turned("transpose_a", x[0]), turned("transpose_b", x[1]))};
}

Operands LayerNorms(const Json& a, const Operands& x) {
  if (a.at("normalized_dims") != 1) return {};
  return {LayerNorm(x[0], x[1], x[2], a.at("eps"))};
}

std::optional<LossReduction> ReductionOf(const Json& a) {
  const std::string name = a.at("reduction");
  if (name == "mean") return LossReduction::kMean;
  if (name == "sum") return LossReduction::kSum;
  return std::nullopt;
}

Operands CrossEntropies(const Json& a, const Operands& x) {
  if (!ReductionOf(a) || x.size() > 2) return {};
  return {CrossEntropy(x[0], x[1], a.at("ignore_index"), *ReductionOf(a))};
}

Operands MseLosses(const Json& a, const Operands& x) {
  if (!ReductionOf(a)) return {};
  return {MseLoss(x[0], x[1], *ReductionOf(a))};
}

Operands Stack(const Json& a, const Operands& x) {
  Operands parts;
  for (const DTensor& part : x) {
    Dims shape = part.shape();
    shape.insert(a.at("dim"), 1);
    parts.push_back(Reshape(part, shape));
  }
  return {Concat(parts, a.at("dim"))};
}

Operands Chunks(const Json& a, const Operands& x) {
  std::vector<int64_t> sizes;
  const int dim = a.at("dim");
  const int64_t extent = x[0].dim(dim), chunks = a.at("chunks");
  const int64_t size = (extent + chunks - 1) / chunks;
  for (int64_t begin = 0; begin < extent; begin += size)
    sizes.push_back(std::min(size, extent - begin));
  return Split(x[0], sizes, dim);
}

Operands MaskedFill(const Json& a, const Operands& x) {
  const std::vector<Placement> replicated(x[0].layout().num_axes());
  return {Where(x[1], Full(x[0].mesh(), {}, x[0].dtype(), a.at("value"), replicated), x[0])};
}

const std::map<std::string, Apply>& Ops() {
  static const auto* ops = new std::map<std::string, Apply>{
      {"neg", Unary(Neg)},
      {"abs", Unary(Abs)},
      {"exp", Unary(Exp)},
      {"sin", Unary(Sin)},
      {"cos", Unary(Cos)},
      {"tanh", Unary(Tanh)},
      {"sigmoid", Unary(Sigmoid)},
      {"square", Unary(Square)},
      {"log", Unary(Log)},
      {"sqrt", Unary(Sqrt)},
      {"rsqrt", Unary(Rsqrt)},
      {"reciprocal", Unary(Reciprocal)},
      {"relu", Unary(Relu)},
      {"silu", Unary(Silu)},
      {"clamp", Clamp},
      {"pow_scalar", PowScalar},
      {"cast", CastTo},
      {"add", AddScaled},
      {"sub", Binary(Sub)},
      {"mul", Binary(Mul)},
      {"div", Binary(Div)},
      {"maximum", Binary(Maximum)},
      {"minimum", Binary(Minimum)},
      {"eq", Comparison(CompareOp::kEqual)},
      {"ne", Comparison(CompareOp::kNotEqual)},
      {"lt", Comparison(CompareOp::kLess)},
      {"le", Comparison(CompareOp::kLessEqual)},
      {"gt", Comparison(CompareOp::kGreater)},
      {"ge", Comparison(CompareOp::kGreaterEqual)},
      {"where", [](const Json&, const Operands& x) { return Operands{Where(x[0], x[1], x[2])}; }},
      {"matmul", MatrixProduct},
      {"linear",
       [](const Json&, const Operands& x) {
         return Operands{Linear(x[0], x[1], x.size() > 2 ? x[2] : DTensor())};
       }},
      {"sum", Reduction(Sum)},
      {"mean", Reduction(Mean)},
      {"amax", Reduction(Max)},
      {"amin", Reduction(Min)},
      {"softmax",
       [](const Json& a, const Operands& x) { return Operands{Softmax(x[0], a.at("dim"))}; }},
      {"log_softmax",
       [](const Json& a, const Operands& x) { return Operands{LogSoftmax(x[0], a.at("dim"))}; }},
      {"layer_norm", LayerNorms},
      {"rms_norm",
       [](const Json& a, const Operands& x) { return Operands{RmsNorm(x[0], x[1], a.at("eps"))}; }},
      {"embedding",
       [](const Json& a, const Operands& x) {
         return a.contains("padding_idx") ? Operands() : Operands{Embedding(x[0], x[1])};
       }},
      {"cross_entropy", CrossEntropies},
      {"mse_loss", MseLosses},
      {"attention",
       [](const Json& a, const Operands& x) {
         return x.size() > 3 ? Operands() : Operands{Attention(x[0], x[1], x[2], a.at("causal"))};
       }},
      {"cat", [](const Json& a, const Operands& x) { return Operands{Concat(x, a.at("dim"))}; }},
      {"stack", Stack},
      {"split",
       [](const Json& a, const Operands& x) { return Split(x[0], a.at("sizes"), a.at("dim")); }},
      {"chunk", Chunks},
      {"masked_fill", MaskedFill},
  };
  return *ops;
}

// Ops, and single cases of others, that do not exist here yet.
const std::set<std::string>& NotThere() {
  static const auto* names = new std::set<std::string>{
      // Pointwise.
      "expm1", "erf", "sign", "floor", "ceil", "round", "trunc", "log2", "log10", "log1p", "isnan",
      "isinf", "isfinite", "logical_not", "leaky_relu", "elu", "gelu", "softplus", "pow", "atan2",
      "remainder", "fmod", "floor_divide", "logical_and", "logical_or", "logical_xor", "lerp",
      "pow_scalar/0",  // Exponents other than 2 and -0.5.
      "cast/2",        // To u8.
      // Products.
      "dot", "outer", "einsum", "matmul/10", "matmul/11",  // Of vectors.
      // Reductions.
      "prod", "logsumexp", "var", "std", "norm", "argmax", "argmin", "any", "all", "cumsum",
      "cumprod",
      // Norms, lookups and losses.
      "group_norm", "nll_loss", "bce_with_logits",
      "layer_norm/1",  // Over two dims.
      "embedding/1",   // With padding_idx.
      "cross_entropy/1", "cross_entropy/3", "cross_entropy/4",
      "cross_entropy/5",  // Class weights, no reduction.
      "mse_loss/2",       // No reduction.
      "attention/3",      // With a mask.
      // Convolution, shape, indexing.
      "conv1d", "conv2d", "flip", "roll", "pad", "tril", "triu", "repeat", "repeat_interleave",
      "gather", "index_select", "index_add", "scatter", "scatter_add", "take_along_dim", "one_hot",
      "sort", "topk"};
  return *names;
}

// ---- the cases ----------------------------------------------------------------------------------

class Goldens {
 public:
  Goldens() : file_(*SafetensorsFile::Open(absl::StrCat(kFolder, "tensors.safetensors"))) {
    std::ifstream stream(absl::StrCat(kFolder, "cases.json"));
    cases_ = Json::parse(stream);
  }
  const Json& cases() const { return cases_; }
  /// The tensor "<id>/<name>"; nothing if there is none, or its dtype is one that the library does
  /// not have.
  std::optional<GlobalValue> Find(const std::string& name) const {
    const StoredTensor* stored = file_.Find(name);
    if (stored == nullptr || !stored->dtype) return std::nullopt;
    ExecutionContext context;
    Tensor tensor =
        Tensor::Empty(context, Dims(std::span<const int64_t>(stored->shape)), *stored->dtype);
    EXPECT_TRUE(file_.Read(name, tensor).ok()) << name;
    return GlobalOf(tensor);
  }

 private:
  SafetensorsFile file_;
  Json cases_;
};

const Goldens& TheGoldens() {
  static const auto* goldens = new Goldens;
  return *goldens;
}

// How the operands lie on the mesh.
enum class Split { kWhole, kFirstDim, kLastDim, kFirstOperandPartial };

Placement PlacementOf(Split split, size_t operand, const GlobalValue& value) {
  switch (split) {
    case Split::kWhole:
      break;
    case Split::kFirstDim:
      return value.shape.empty() ? Replicate() : Shard(0);
    case Split::kLastDim:
      return value.shape.empty() ? Replicate() : Shard(-1);
    case Split::kFirstOperandPartial:
      if (operand == 0 && value.dtype != DType::kBool) return Partial();
  }
  return Replicate();
}

// One run of all cases: computing in `real`, within `tolerance` of the expectation.
class Run {
 public:
  Run(const DeviceMesh& mesh, Split split, DType real) : mesh_(mesh), split_(split), real_(real) {}

  void All() {
    for (const Json& golden : TheGoldens().cases()) {
      SCOPED_TRACE(absl::StrCat(golden.at("id").get<std::string>(), " ", golden.value("note", "")));
      One(golden);
    }
  }
  int count() const { return count_; }
  const std::set<std::string>& missing() const { return missing_; }

 private:
  GlobalValue Get(const std::string& id, const std::string& name) const {
    return TheGoldens().Find(absl::StrCat(id, "/", name)).value_or(GlobalValue());
  }

  DTensor Operand(size_t index, GlobalValue value) const {
    if (value.dtype == DType::kF64) value.dtype = real_;
    return Distribute(mesh_, WholeTensor(mesh_.context(), value),
                      {PlacementOf(split_, index, value)});
  }

  void One(const Json& golden) {
    const std::string id = golden.at("id"), op = golden.at("op");
    const auto found = Ops().find(op);
    if (found == Ops().end()) {
      missing_.insert(op);
      return;
    }
    const std::vector<std::string> names = golden.at("inputs"), outputs = golden.at("outputs"),
                                   differentiable = golden.at("differentiable");
    Operands operands;
    std::map<std::string, DTensor> leaves;
    for (const std::string& name : names) {
      operands.push_back(Operand(operands.size(), Get(id, name)));
      if (std::find(differentiable.begin(), differentiable.end(), name) != differentiable.end())
        leaves[name] = operands.back().SetRequiresGrad();
    }
    const Operands results = found->second(golden.value("attrs", Json::object()), operands);
    if (results.empty()) {
      missing_.insert(id);
      return;
    }
    ++count_;
    ASSERT_EQ(results.size(), outputs.size());
    for (size_t i = 0; i < results.size(); ++i)
      Compare(op, outputs[i], FullTensor(results[i]), Get(id, outputs[i]));
    if (leaves.empty()) return;
    Differentiate(id, results, outputs);
    for (const auto& [name, leaf] : leaves) {
      const std::string grad = absl::StrCat("grad_", name);
      ASSERT_TRUE(leaf.grad()) << grad;
      Compare(op, grad, FullTensor(leaf.grad()), Get(id, grad));
    }
  }

  void Differentiate(const std::string& id, const Operands& results,
                     const std::vector<std::string>& outputs) const {
    const auto upstream = [&](size_t i) {
      return Operand(i, Get(id, absl::StrCat("grad_", outputs[i])));
    };
    if (results.size() == 1) {
      Backward(results[0], upstream(0));
      return;
    }
    DTensor sum;
    for (size_t i = 0; i < results.size(); ++i) {
      const DTensor part = Sum(Mul(results[i], upstream(i)));
      sum = sum ? Add(sum, part) : part;
    }
    Backward(sum);
  }

  // 4e-5 where a division or an exponential amplifies, in f32.
  double ToleranceOf(const std::string& op) const {
    static const std::set<std::string> amplifying = {
        "exp", "log", "rsqrt", "reciprocal", "div", "softmax", "log_softmax", "pow_scalar", "sqrt"};
    if (real_ == DType::kF64) return 1e-12;
    return amplifying.count(op) > 0 ? 4e-5 : 2e-6;
  }

  void Compare(const std::string& op, const std::string& name, const Tensor& actual,
               const GlobalValue& expected) const {
    EXPECT_EQ(actual.shape(), expected.shape) << name;
    EXPECT_EQ(actual.dtype(), expected.dtype == DType::kF64 ? real_ : expected.dtype) << name;
    EXPECT_TRUE(AreClose(actual.ToVector<double>(), expected.values, ToleranceOf(op))) << name;
  }

  DeviceMesh mesh_;
  Split split_;
  DType real_;
  int count_ = 0;
  std::set<std::string> missing_;
};

void RunAll(const MeshShape& mesh_shape, Split split, DType real) {
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    Run run(mesh, split, real);
    run.All();
    if (mesh.coord()[0] != 0) return;
    EXPECT_EQ(run.missing(), NotThere());
    std::cout << run.count() << " of " << TheGoldens().cases().size() << " cases ran\n";
  });
}

TEST(GoldenOps, HoldOnOneRankInF64) { RunAll({{"x", 1}}, Split::kWhole, DType::kF64); }
TEST(GoldenOps, HoldOnOneRankInF32) { RunAll({{"x", 1}}, Split::kWhole, DType::kF32); }

TEST(GoldenOps, HoldOnTwoRanksHoweverOperandsAreSplit) {
  for (const Split split :
       {Split::kWhole, Split::kFirstDim, Split::kLastDim, Split::kFirstOperandPartial}) {
    SCOPED_TRACE(static_cast<int>(split));
    RunAll({{"x", 2}}, split, DType::kF64);
    RunAll({{"x", 2}}, split, DType::kF32);
  }
}

}  // namespace
}  // namespace shardmesh::testing
