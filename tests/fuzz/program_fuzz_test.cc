// SPDX-License-Identifier: Apache-2.0
//
// Random programs of ops, views, in-place ops, hooks, dropped handles and repeated backwards, on
// random layouts and meshes, against one rank: the same values and gradients, the same refusals on
// every rank, never a hang.
//
//   program_fuzz_test --minutes=20 --from=1000      # programs of seeds 1000, 1001, ..
//   program_fuzz_test --seed=7                      # one program, as a failure prints it
//
// What a program may rely on is decided when it is made, from the program alone: after an in-place
// op the other views of the same memory are not read any more (they alias where no data moved), but
// the tensors that the written one was viewed from are, as a write that does not reach them is
// refused. A write refused on the mesh is left out on one rank.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tests/fuzz/seed_flags.h"

namespace shardmesh::testing {
namespace {

SeedFlags flags;

constexpr int kTrainable = 3;  // Leaves that require a gradient; two more do not.
constexpr int kLeaves = kTrainable + 2;
constexpr double kTolerance = 1e-9;

enum class Kind {
  // Make a value from one or two.
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kNeg,
  kExp,
  kTanh,
  kSigmoid,
  kSilu,
  kRelu,
  kSquare,
  kSqrt,
  kSiluMul,
  kDropout,
  kWhere,
  kMatMul,
  kLinear,
  kSoftmax,
  kLogSoftmax,
  kRmsNorm,
  kLayerNorm,
  kMeanBroadcast,
  kSumExpand,
  kMax,
  kConcat,
  kSplit,
  kEmbedding,
  kAttention,
  kCrossEntropy,
  kMse,
  kCast,
  kUserOp,
  kRedistribute,
  kRoundTrip,
  // Make another view of a value.
  kTranspose,
  kReshape,
  kSliceAll,
  kDetach,
  // Write a value.
  kAddInPlace,
  kMulInPlace,
  kFillInPlace,
  kCopyInPlace,
  // Others.
  kHook,
  kDrop,
  kBackward,
  kBackwardTwice,
  kZeroGrad,
  kSetGrad,
  kCount,
};

bool MakesView(Kind kind) { return kind >= Kind::kRedistribute && kind <= Kind::kDetach; }
bool Writes(Kind kind) { return kind >= Kind::kAddInPlace && kind <= Kind::kCopyInPlace; }
bool MakesValue(Kind kind) { return kind <= Kind::kDetach; }

struct Instruction {
  Kind kind;
  int left, right;  // Values made before.
  int64_t choice;   // Of dims, placements, numbers, ...
};

struct Program {
  uint64_t seed;
  MeshShape mesh;
  int64_t n;  // All values are n x n.
  std::vector<Instruction> instructions;
  std::vector<bool> alive;  // Which values may be read at the end.
};

// What may be read while a program is made.
class Liveness {
 public:
  int Make(int viewed_from) {
    const int value = static_cast<int>(parents_.size());
    parents_.push_back(viewed_from);
    families_.push_back(viewed_from < 0 ? value : families_[viewed_from]);
    alive_.push_back(true);
    return value;
  }
  // Other members of the family may or may not see it, but for what `value` was viewed from.
  void Write(int value) {
    std::vector<bool> seen(parents_.size(), false);
    for (int v = value; v >= 0; v = parents_[v]) seen[v] = true;
    for (size_t v = 0; v < parents_.size(); ++v) {
      if (families_[v] == families_[value] && !seen[v]) alive_[v] = false;
    }
  }
  void Drop(int value) { alive_[value] = false; }
  const std::vector<bool>& alive() const { return alive_; }
  int Pick(Random& random) const {
    for (int tries = 0; tries < 50; ++tries) {
      // Later values more often, so that chains get long.
      const auto made = static_cast<int64_t>(alive_.size());
      const auto v = static_cast<int>(std::max(random.Below(made), random.Below(made)));
      if (alive_[v]) return v;
    }
    for (size_t v = 0; v < alive_.size(); ++v) {
      if (alive_[v]) return static_cast<int>(v);
    }
    return -1;
  }

 private:
  std::vector<int> parents_, families_;
  std::vector<bool> alive_;
};

Program MakeProgram(uint64_t seed) {
  Random random(seed);
  const std::vector<MeshShape> meshes = {{{"x", 2}},           {{"x", 3}},
                                         {{"x", 5}},           {{"x", 2}, {"y", 2}},
                                         {{"x", 3}, {"y", 2}}, {{"x", 1}, {"y", 2}}};
  Program program{seed,
                  meshes[random.Below(static_cast<int64_t>(meshes.size()))],
                  std::vector<int64_t>{1, 2, 3, 5, 6, 7}[random.Below(6)],
                  {},
                  {}};
  Liveness live;
  for (int i = 0; i < kLeaves; ++i) live.Make(-1);
  const int64_t length = 3 + random.Below(22);
  for (int64_t i = 0; i < length; ++i) {
    Instruction next{static_cast<Kind>(random.Below(static_cast<int64_t>(Kind::kCount))),
                     live.Pick(random), live.Pick(random), random.Below(1 << 20)};
    if (next.left < 0) break;
    if (MakesValue(next.kind)) live.Make(MakesView(next.kind) ? next.left : -1);
    if (Writes(next.kind)) live.Write(next.left);
    if (next.kind == Kind::kDrop) live.Drop(next.left);
    program.instructions.push_back(next);
  }
  program.alive = live.alive();
  return program;
}

std::string ToString(const Program& program) {
  std::string text = absl::StrCat("--seed=", program.seed, " on ", program.mesh.ToString(),
                                  ", n=", program.n, ":");
  int value = kLeaves;
  for (const Instruction& op : program.instructions) {
    absl::StrAppend(&text, " (", static_cast<int>(op.kind), " ", op.left, " ", op.right, " ",
                    op.choice);
    if (MakesValue(op.kind)) absl::StrAppend(&text, " -> ", value++);
    absl::StrAppend(&text, ")");
  }
  return text;
}

constexpr Op kScaledCopy{"scaled_copy"};

// An op of a user's, whose backward captures its operand's handle.
DTensor ScaledCopy(const DTensor& x, double factor) {
  OpCall call(kScaledCopy, {&x});
  call.Decide([&] { return OpRule{Rule::Parse("i j -> i j; linear 0"), {x.shape()}}; });
  DTensor y = call.Result(ops::Binary(call.context(), BinaryOp::kMul, call.local(0), factor));
  call.Record({&y}, [x, factor](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Mul(grads[0], factor));
  });
  return y;
}

// What one rank saw.
struct Outcome {
  std::vector<bool> refused;  // By instruction that was reached.
  std::string ended_by;       // Why a backward ended the run, if one did.
};

// One run of a program on one rank.
class Run {
 public:
  // `skip`: writes that another run refused. `put` gets what is to be compared, in order.
  Run(const DeviceMesh& mesh, const Program& program, const std::vector<bool>* skip,
      std::function<void(const DTensor&)> put)
      : mesh_(mesh), program_(program), skip_(skip), put_(std::move(put)) {}

  Outcome Execute() {
    MakeLeaves();
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      outcome_.refused.push_back(skip_ != nullptr && i < skip_->size() && (*skip_)[i]);
      if (outcome_.refused.back()) continue;
      Step(program_.instructions[i]);
      if (!outcome_.ended_by.empty()) return outcome_;
    }
    for (size_t v = 0; v < values_.size(); ++v) {
      if (program_.alive[v]) put_(values_[v]);
    }
    return outcome_;
  }

 private:
  void MakeLeaves() {
    Random random(program_.seed + 1000);
    const Dims shape = {program_.n, program_.n};
    const std::vector<Layout> layouts = AllLayouts(mesh_.shape(), shape);
    for (int i = 0; i < kLeaves; ++i) {
      const GlobalValue value = RandomGlobal(shape, random);
      const int64_t choice = random.Below(1 << 20);
      // One rank refuses nothing: a Partial may not be written by every in-place op.
      const Layout layout = mesh_.shape().NumRanks() == 1
                                ? Layout::Replicated(mesh_.shape(), shape)
                                : layouts[choice % static_cast<int64_t>(layouts.size())];
      DTensor leaf = Place(mesh_, layout, value, i + 1);
      if (i < kTrainable) leaf.SetRequiresGrad();
      values_.push_back(std::move(leaf));
      if (i < kTrainable) trainable_.push_back(values_.back());
    }
  }

  void Step(const Instruction& op) {
    const DTensor x = values_[op.left], y = values_[op.right];
    if (MakesValue(op.kind)) {
      values_.push_back(Make(op, x, y));
    } else if (Writes(op.kind)) {
      Write(op, x, y);
    } else {
      Other(op, x);
    }
  }

  DTensor Make(const Instruction& op, const DTensor& x, const DTensor& y) {
    const int dim = static_cast<int>(op.choice % 2);
    const int64_t n = program_.n;
    switch (op.kind) {
      case Kind::kAdd:
        return Mul(Add(x, y), 0.5);
      case Kind::kSub:
        return Sub(Mul(x, 0.5), y);
      case Kind::kMul:
        return Mul(x, Tanh(y));
      case Kind::kDiv:
        return Div(x, Add(Square(y), 1.0));
      // Ties would be broken by rounding: no gradient passes.
      case Kind::kMaximum:
        return op.choice % 4 < 2 ? Maximum(x.Detach(), y.Detach())
                                 : Minimum(x.Detach(), 0.123456789);
      case Kind::kNeg:
        return Neg(x);
      case Kind::kExp:
        return Exp(Tanh(x));
      case Kind::kTanh:
        return Tanh(x);
      case Kind::kSigmoid:
        return Sigmoid(x);
      case Kind::kSilu:
        return Silu(x);
      case Kind::kRelu:
        return Relu(Add(x, 0.0123456789));
      case Kind::kSquare:
        return Square(Sin(x));
      case Kind::kSqrt:
        return Sqrt(Add(Square(x), 0.5));
      case Kind::kSiluMul:
        return SiluMul(x, Tanh(y));
      case Kind::kDropout:
        return Dropout(x, 0.25, {.seed = 9, .stream = program_.seed + op.choice});
      case Kind::kWhere:
        return Where(Compare(CompareOp::kLess, x, 0.123456789), Mul(x, 0.5), Cos(y));
      case Kind::kMatMul:
        return Mul(MatMul(x, y), 0.25);
      case Kind::kLinear:
        return Mul(Linear(x, y, op.choice % 4 < 2 ? DTensor() : Reshape(Slice(y, 0, 0, 1), {n})),
                   0.25);
      case Kind::kSoftmax:
        return Softmax(x, dim);
      case Kind::kLogSoftmax:
        return Mul(LogSoftmax(x, dim), 0.25);
      case Kind::kRmsNorm:
        return RmsNorm(x, Reshape(Slice(y, 0, op.choice % n, 1), {n}), 1e-2);
      case Kind::kLayerNorm:
        return LayerNorm(x, Reshape(Slice(y, 0, op.choice % n, 1), {n}),
                         op.choice % 4 < 2 ? DTensor() : Reshape(Slice(x, 1, 0, 1), {n}), 1e-1);
      case Kind::kMeanBroadcast:
        return Add(Mean(x, {dim}, true), y);
      case Kind::kSumExpand:
        return Mul(Expand(Sum(x, {dim}, true), {n, n}), 0.25);
      case Kind::kMax:
        return Add(op.choice % 4 < 2 ? Max(x.Detach(), {dim}, true) : Min(x.Detach(), {dim}, true),
                   Mul(y, 0.5));
      case Kind::kConcat:
        return Concat({Slice(x, dim, n / 2, n - n / 2), Slice(y, dim, 0, n / 2)}, dim);
      case Kind::kSplit: {
        const std::vector<DTensor> parts = Split(x, {n / 3, n - n / 3}, dim);
        return Concat({parts[1], parts[0]}, dim);
      }
      case Kind::kEmbedding:
        return Embedding(Indices(op.choice), y);
      case Kind::kAttention: {
        const Dims heads = {1, 1, n, n};
        return Reshape(Attention(Reshape(x, heads), Reshape(y, heads), Reshape(Tanh(x), heads),
                                 op.choice % 2 == 0),
                       {n, n});
      }
      case Kind::kCrossEntropy:
        return Add(x, Mul(CrossEntropy(y, Indices(op.choice)), 0.1));
      case Kind::kMse:
        return Add(x, Mul(MseLoss(x, y), 0.01));
      case Kind::kCast:
        return Add(Mul(Cast(Cast(x.Detach(), DType::kF32), DType::kF64), 0.0), x);
      case Kind::kUserOp:
        return ScaledCopy(x, -0.75);
      case Kind::kRedistribute:
        return Redistribute(x, Placements(op.choice));
      case Kind::kRoundTrip:
        return Redistribute(Redistribute(x, Placements(op.choice)),
                            x.layout().PartialAsReplicate());
      case Kind::kTranspose:
        return Transpose(x, 0, 1);
      case Kind::kReshape:
        return Reshape(Reshape(x, {n * n}), {n, n});
      case Kind::kSliceAll:
        return Slice(x, dim, 0, n);
      case Kind::kDetach:
        return x.Detach();
      default:
        break;
    }
    ADD_FAILURE() << "no such kind";
    return x;
  }

  DTensor Indices(int64_t choice) const {
    Random random(choice);
    return Place(mesh_, Layout::Replicated(mesh_.shape(), {program_.n}),
                 RandomIntegers({program_.n}, random, 0, program_.n));
  }

  std::vector<Placement> Placements(int64_t choice) const {
    std::vector<Placement> placements;
    for (int axis = 0; axis < mesh_.shape().num_axes(); ++axis, choice /= 4)
      placements.push_back(choice % 4 == 3   ? Partial()
                           : choice % 4 == 2 ? Replicate()
                                             : Shard(static_cast<int>(choice % 4)));
    return placements;
  }

  void Write(const Instruction& op, const DTensor& x, const DTensor& y) {
    const NoGrad no_grad(mesh_);
    try {
      switch (op.kind) {
        case Kind::kAddInPlace:
          AddInPlace(x, Mul(y, 0.25));
          break;
        case Kind::kMulInPlace:
          MulInPlace(x, -0.5);
          break;
        case Kind::kFillInPlace:
          FillInPlace(x, 0.375);
          break;
        default:
          CopyInPlace(x, y);
          break;
      }
    } catch (const Error& error) {
      // A copy, or a layout that would have to change.
      const std::string message(error.message());
      if (!absl::StrContains(message, "is a copy") && !absl::StrContains(message, "is Partial"))
        throw;
      outcome_.refused.back() = true;
    }
  }

  void Other(const Instruction& op, const DTensor& x) {
    switch (op.kind) {
      case Kind::kHook:
        AddHook(x, op.choice % 4);
        break;
      case Kind::kDrop:
        values_[op.left] = DTensor();
        break;
      case Kind::kBackward:
        Differentiate(x, /*twice=*/false);
        break;
      case Kind::kBackwardTwice:
        Differentiate(x, /*twice=*/true);
        break;
      case Kind::kZeroGrad:
        trainable_[op.choice % kTrainable].ZeroGrad();
        break;
      default: {
        DTensor& from = trainable_[op.choice % kTrainable];
        if (from.grad()) SetGradOf(trainable_[(op.choice + 1) % kTrainable], from.grad());
        break;
      }
    }
  }

  static void SetGradOf(DTensor& leaf, const DTensor& grad) {
    leaf.SetGrad(Redistribute(grad, leaf.layout().PartialAsReplicate()));
  }

  static void AddHook(DTensor x, int64_t what) {
    if (!x.RequiresGrad()) return;
    x.RegisterGradHook([what](const DTensor& grad) {
      if (what == 0) MulInPlace(grad, -0.5);
      if (what == 1) return Mul(grad, 2.0);
      if (what == 2) MulInPlace(grad, 0.0);
      return grad;
    });
  }

  void Differentiate(const DTensor& x, bool twice) {
    if (!x.RequiresGrad()) return;
    const DTensor loss = Mul(Sum(Sin(x)), 0.125);
    if (!TryBackward(loss, "was written in place after forward")) return;
    put_(loss);
    for (const DTensor& leaf : trainable_) {
      if (leaf.grad()) put_(leaf.grad());
    }
    if (twice) {
      const absl::Status status = Catch([&] { Backward(loss); });
      EXPECT_TRUE(absl::StrContains(status.message(), "used by an earlier Backward")) << status;
    }
  }

  // False, and the end of the run, if it failed for a reason that programs may have: a value that
  // was written, or a graph that an earlier backward has used.
  bool TryBackward(const DTensor& loss, const char* allowed) {
    try {
      Backward(loss);
      return true;
    } catch (const Error& error) {
      const std::string message(error.message());
      if (!absl::StrContains(message, allowed) &&
          !absl::StrContains(message, "used by an earlier Backward"))
        throw;
      outcome_.ended_by = absl::StrContains(message, allowed) ? "written" : "used";
      return false;
    }
  }

  const DeviceMesh& mesh_;
  const Program& program_;
  const std::vector<bool>* skip_;
  std::function<void(const DTensor&)> put_;
  std::vector<DTensor> values_;
  std::vector<DTensor> trainable_;
  Outcome outcome_;
};

// What all ranks of a mesh saw.
struct Results {
  std::vector<Outcome> outcomes;  // By rank.
  std::deque<Pieces> pieces;
};

absl::Status RunOn(const MeshShape& shape, const Program& program, const std::vector<bool>* skip,
                   Results& results) {
  results.outcomes.resize(shape.NumRanks());
  // At most a loss and the gradients per backward, and the values.
  results.pieces.resize(program.instructions.size() * (1 + kTrainable) + program.alive.size());
  return RunRanks(static_cast<int>(shape.NumRanks()),
                  [&](Communicator& world) {
                    const DeviceMesh mesh = DeviceMesh::Create(world, shape);
                    size_t next = 0;
                    Run run(mesh, program, skip,
                            [&](const DTensor& x) { results.pieces[next++].Put(x); });
                    results.outcomes[world.rank()] = run.Execute();
                  },
                  {.timeout = absl::Seconds(30), .threads_per_rank = 1});
}

// Relative to the largest element, or to 1 where elements are what cancellation left of larger
// ones.
::testing::AssertionResult AreEqual(const Pieces& pieces, GlobalValue expected) {
  double largest = 0;
  for (const double v : expected.values) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  if (largest >= 1) return pieces.AreOf(expected, kTolerance);
  if (largest > kTolerance) return pieces.AreOf(expected, kTolerance / largest);
  for (const double v : pieces.Value().values) {
    if (std::abs(v) > 2 * kTolerance)
      return ::testing::AssertionFailure() << v << " instead of " << largest << " at most";
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Check(const Program& program) {
  Results mesh, alone;
  const absl::Status on_mesh = RunOn(program.mesh, program, nullptr, mesh);
  if (!on_mesh.ok()) return ::testing::AssertionFailure() << "on the mesh: " << on_mesh;
  for (size_t r = 1; r < mesh.outcomes.size(); ++r) {
    if (mesh.outcomes[r].refused != mesh.outcomes[0].refused ||
        mesh.outcomes[r].ended_by != mesh.outcomes[0].ended_by) {
      return ::testing::AssertionFailure() << "rank " << r << " refused what rank 0 did, or not";
    }
  }
  const absl::Status on_one = RunOn({{"one", 1}}, program, &mesh.outcomes[0].refused, alone);
  if (!on_one.ok()) return ::testing::AssertionFailure() << "on one rank: " << on_one;
  // A backward may have ended one of the runs: what came before must still agree.
  std::vector<bool> refused = mesh.outcomes[0].refused, on_one_rank = alone.outcomes[0].refused;
  const size_t reached = std::min(refused.size(), on_one_rank.size());
  refused.resize(reached);
  on_one_rank.resize(reached);
  if (refused != on_one_rank) {
    return ::testing::AssertionFailure() << "one rank refused a write that the mesh did";
  }
  for (size_t i = 0; i < mesh.pieces.size(); ++i) {
    if (!mesh.pieces[i].layout() || !alone.pieces[i].layout()) break;
    const ::testing::AssertionResult same = AreEqual(mesh.pieces[i], alone.pieces[i].Value());
    if (!same) return ::testing::AssertionFailure() << "value " << i << ": " << same.message();
  }
  return ::testing::AssertionSuccess();
}

TEST(ProgramFuzz, ComputesOnAnyMeshWhatItComputesOnOneRank) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(60 * flags.minutes);
  int64_t programs = 0, failures = 0;
  for (uint64_t seed = flags.first_seed; failures < 5; ++seed) {
    if (std::chrono::steady_clock::now() >= end && !flags.one_program) break;
    const Program program = MakeProgram(seed);
    const ::testing::AssertionResult result = Check(program);
    ++programs;
    if (!result) {
      ++failures;
      ADD_FAILURE() << ToString(program) << "\n" << result.message();
    }
    if (flags.one_program) break;
  }
  std::cout << programs << " programs, " << failures << " failures\n";
  EXPECT_GT(programs, 0);
}

}  // namespace
}  // namespace shardmesh::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!shardmesh::testing::flags.Parse(argc, argv)) return EXIT_FAILURE;
  return RUN_ALL_TESTS();
}
