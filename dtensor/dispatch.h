// SPDX-License-Identifier: Apache-2.0
//
// How an op on DTensors is carried out: decide layouts (cached), move operands, run the local
// kernel, wrap the result, record the backward. Ops of the library and ops of users are written
// alike:
//
//   constexpr Op kScaledAdd{"scaled_add"};
//
//   DTensor ScaledAdd(const DTensor& a, const DTensor& b, double s) {
//     OpCall call(kScaledAdd, {&a, &b});
//     call.Decide([&] { return OpRule{Rule::Parse("i j, i j -> i j; linear 0 1"), {a.shape()}}; });
//     Tensor local = ops::Binary(call.context(), BinaryOp::kMul, call.local(1), s);
//     ops::BinaryInto(call.context(), BinaryOp::kAdd, local, call.local(0));
//     DTensor y = call.Result(local);
//     call.Record({&y}, [s](std::span<const DTensor> grads, Gradients& out) {
//       if (out.Needs(0)) out.Set(0, grads[0]);
//       if (out.Needs(1)) out.Set(1, Mul(grads[0], s));
//     });
//     return y;
//   }
#ifndef SHARDMESH_DTENSOR_DISPATCH_H_
#define SHARDMESH_DTENSOR_DISPATCH_H_

#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/gradients.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/dtensor/internal/node.h"
#include "shardmesh/dtensor/runtime.h"
#include "shardmesh/placement/rule.h"

namespace shardmesh {

/// Names an op. Each op has one static object, whose address is part of the decision key.
struct Op {
  const char* name;
};

/// What a cache miss needs to know. Made from global metadata alone, so that all ranks decide, and
/// fail, alike.
struct OpRule {
  Rule rule;
  std::vector<Dims> output_shapes;
};

/// One call of one op on one rank. Short-lived; the operands must outlive it.
class OpCall {
 public:
  /// Errors: throws Error(kInvalidArgument) naming the op if an operand is no tensor, or operands
  /// belong to different ranks or meshes; Error(kFailedPrecondition) if they belong to another
  /// rank than the caller's, or to one that has ended.
  OpCall(const Op& op, std::initializer_list<const DTensor*> operands)
      : OpCall(op, std::span<const DTensor* const>(operands.begin(), operands.size())) {}
  OpCall(const Op& op, std::span<const DTensor* const> operands);
  ~OpCall() { runtime_.EndCall(); }
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  /// Static attributes that the rule depends on, before Decide.
  template <typename... Attributes>
  OpCall& Attribute(const Attributes&... attributes) {
    (key_.Add(attributes), ...);
    return *this;
  }

  // What follows needs Decide, and throws Error(kFailedPrecondition) naming the op before it, and
  // Error(kInvalidArgument) for an operand or result that the op does not have.

  /// Finds the layouts of operands and results, and moves the operands. `make_rule() -> OpRule`
  /// runs on a cache miss only and throws if the operands' shapes or dtypes do not fit; a message
  /// that names no operand is given all of them.
  template <typename MakeRule>
  void Decide(MakeRule&& make_rule) {
    decision_ = runtime_.FindDecision(key_);
    if (decision_ == nullptr) decision_ = &DecideAnew(make_rule);
    if (decision_->propagation.has_moves) {
      if (runtime_.reshard_policy != ReshardPolicy::kAuto) CheckMoves(make_rule());
      MoveOperands();
    }
    if (decision_->has_small_summands) WidenOperands();
  }

  const Op& op() const { return op_; }
  Runtime& runtime() const { return runtime_; }
  ExecutionContext& context() const { return mesh().context(); }
  const DeviceMesh& mesh() const { return operands_[0]->impl()->mesh; }
  /// The operand's local tensor in the decided layout. If some operand is Partial, of a small dtype
  /// and held in f32, then all operands of a small dtype are f32 here.
  const Tensor& local(int operand) const {
    CheckOperand(operand);
    return locals_.empty() || !locals_[operand] ? operands_[operand]->impl()->local
                                                : locals_[operand];
  }
  /// Whether the operand had to move: then local() shares no memory with it.
  bool IsMoved(int operand) const {
    CheckOperand(operand);
    return !moved_.empty() && moved_[operand];
  }
  /// The dtype of the local tensor that makes a result of `dtype`: f32 for summands of a small one
  /// (partial_precision.h).
  DType LocalDType(DType dtype, int result = 0) const {
    return IsSmall(dtype)
               ? (wide_ ? DType::kF32 : runtime_.StoredDType(dtype, output_layout(result)))
               : dtype;
  }
  /// The operand in the decided layout, outside the graph: what backward should save.
  DTensor input(int operand) const;
  const Layout& input_layout(int operand) const {
    CheckOperand(operand);
    return decision_->propagation.inputs[operand];
  }
  Box InputBox(int operand) const { return input_layout(operand).LocalBox(mesh().coord()); }
  const Layout& output_layout(int result = 0) const {
    CheckResult(result);
    return decision_->propagation.outputs[result];
  }

  /// Wraps a result, of the shape of this rank's box; Error(kInternal) naming both shapes if it is
  /// not, which is a fault of the op. It is of the local tensor's dtype, or, where operands came in
  /// f32 for a small dtype, of that. Made contiguous. `may_write` is false where it may share
  /// memory with an operand in a way that in-place ops must not see.
  DTensor Result(Tensor local, int result = 0, bool may_write = true) const;
  /// The same for a result of `dtype`.
  DTensor ResultOf(DType dtype, Tensor&& local, int result = 0) const;
  /// Wraps a view of an operand, which lies in memory in `order`.
  DTensor View(Tensor local, internal::MemoryOrder order, bool may_write) const;

  /// Whether Record would record.
  bool Records() const { return records_; }
  /// Makes `results` differentiable: `backward(std::span<const DTensor> grads, Gradients& out)`
  /// gets one gradient a result. Does nothing if no operand requires a gradient or NoGrad is alive.
  template <typename F>
  void Record(std::initializer_list<DTensor*> results, F backward) {
    if (!Records()) return;
    internal::RecordNode(runtime_.NextSequence(), op_.name,
                         std::span<const DTensor* const>(operands_.data(), operands_.size()),
                         results, std::move(backward));
  }

 private:
  const Decision& DecideAnew(absl::FunctionRef<OpRule()> make_rule);
  void CheckMoves(const OpRule& op_rule) const;
  void MoveOperands();
  void WidenOperands();
  std::shared_ptr<internal::DTensorImpl> Wrap(DType dtype, Tensor&& local, int result) const;
  void CheckOperand(int operand) const {
    if (decision_ == nullptr || static_cast<size_t>(operand) >= operands_.size())
      ThrowMisuse("operand", operand);
  }
  void CheckResult(int result) const {
    if (decision_ == nullptr ||
        static_cast<size_t>(result) >= decision_->propagation.outputs.size())
      ThrowMisuse("result", result);
  }
  [[noreturn]] void ThrowMisuse(const char* what, int index) const;

  const Op& op_;
  absl::InlinedVector<const DTensor*, 4> operands_;
  Runtime& runtime_;
  DecisionKey key_;
  const Decision* decision_ = nullptr;
  absl::InlinedVector<Tensor, 4> moved_;   // Empty if nothing moved.
  absl::InlinedVector<Tensor, 4> locals_;  // What kernels read: moved or widened; empty if neither.
  bool records_ = false;
  bool wide_ = false;                // Operands of a small dtype are f32.
  DType small_dtype_ = DType::kF32;  // Which one.
};

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_DISPATCH_H_
