// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/checkpoint.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/backward_region.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/checkpoint_frame.h"
#include "shardmesh/dtensor/saved_tensor_hooks.h"

namespace shardmesh {
namespace {

using Function = std::function<std::vector<DTensor>(std::span<const DTensor> inputs)>;

constexpr char kCheckpoint[] = "checkpoint";

// What decides how ops run on this rank; put back at the end of its life.
class RuntimeState {
 public:
  explicit RuntimeState(Runtime& runtime)
      : runtime_(runtime),
        grad_enabled_(runtime.grad_enabled),
        partial_precision_(runtime.partial_precision),
        region_(runtime.region),
        hooks_(runtime.saved_tensor_hooks),
        checkpoint_(runtime.checkpoint) {}
  ~RuntimeState() {
    runtime_.grad_enabled = grad_enabled_;
    runtime_.partial_precision = partial_precision_;
    runtime_.region = std::move(region_);
    runtime_.saved_tensor_hooks = std::move(hooks_);
    runtime_.checkpoint = checkpoint_;
  }
  RuntimeState(const RuntimeState&) = delete;
  RuntimeState& operator=(const RuntimeState&) = delete;

 private:
  Runtime& runtime_;
  bool grad_enabled_;
  PartialPrecision partial_precision_;
  std::shared_ptr<BackwardRegion> region_;
  std::shared_ptr<SavedTensorHooks> hooks_;
  internal::CheckpointFrame* checkpoint_;
};

// One call of Checkpoint. While forward runs it numbers what ops save; the first op of backward
// that needs a value runs the function again, and the values go to the same numbers. Owned by the
// values that the graph has saved: gone with the last of them.
class Frame final : public internal::CheckpointFrame, public std::enable_shared_from_this<Frame> {
 public:
  Frame(Runtime& runtime, Function fn, const std::vector<DTensor>& inputs,
        const CheckpointOptions& options)
      : runtime_(runtime),
        options_(options),
        region_(runtime.region),
        partial_precision_(runtime.partial_precision),
        fn_(std::move(fn)) {
    // By the hooks around: an outer Checkpoint computes them again.
    for (const DTensor& input : inputs) {
      const bool is_tensor = static_cast<bool>(input);
      inputs_.push_back({is_tensor ? Saved(input) : Saved(), is_tensor,
                         is_tensor && input.RequiresGrad() && runtime.grad_enabled});
    }
  }

  std::vector<DTensor> Record(std::span<const DTensor> inputs) {
    const RuntimeState before(runtime_);
    const absl::Cleanup end = [this] { phase_ = Phase::kRecorded; };
    Open(Phase::kRecording);
    return fn_(inputs);
  }

  bool NoteOp(const Op& op, std::span<const DTensor* const> operands, bool records) override {
    if (phase_ == Phase::kReplaying) return CheckOp(op, operands);
    Note& note = notes_.emplace_back(Note{&op, records, {}});
    for (const DTensor* operand : operands) {
      const std::shared_ptr<Storage>& storage = operand->local().storage();
      note.operands.push_back({storage, storage->version()});
    }
    return records;
  }
  bool Keeps(std::string_view op) const override {
    return options_.keep != nullptr && options_.keep(op);
  }

  bool is_replaying() const { return phase_ == Phase::kReplaying; }
  Frame* outer() const { return outer_; }

  // ---- values that are not computed again -------------------------------------------------------
  void PushValue(const std::any& value) { values_.push_back(value); }
  std::any NextValue() {
    if (next_value_ == values_.size()) ThrowDiffers("asks for one more value of OnceInCheckpoint");
    return std::move(values_[next_value_++]);
  }

  std::vector<DTensor> Keep(absl::FunctionRef<std::vector<DTensor>()> fn) {
    if (phase_ == Phase::kReplaying) return NextKept();
    std::vector<DTensor> results;
    const RuntimeState before(runtime_);
    runtime_.checkpoint = outer_;
    runtime_.saved_tensor_hooks = outer_hooks_;
    results = fn();
    std::vector<Input> kept;
    for (const DTensor& result : results) {
      const bool is_tensor = static_cast<bool>(result);
      kept.push_back(
          {is_tensor ? Saved(result) : Saved(), is_tensor, is_tensor && result.RequiresGrad()});
    }
    kept_.push_back(std::move(kept));
    return results;
  }

 private:
  enum class Phase { kRecording, kRecorded, kReplaying, kReplayed, kFailed };

  struct Input {
    Saved value;
    bool is_tensor;
    bool requires_grad;

    DTensor Get() const {
      if (!is_tensor) return {};
      DTensor x = value.Get(kCheckpoint).Detach();
      if (requires_grad) x.SetRequiresGrad();
      return x;
    }
  };
  struct Note {
    const Op* op;
    bool records;
    struct Operand {
      std::weak_ptr<Storage> storage;
      int64_t version;
    };
    absl::InlinedVector<Operand, 2> operands;
  };

  // A value that an op has saved.
  struct Slot final : PackedTensor {
    Slot(std::shared_ptr<Frame> frame, const DTensor& value)
        : frame(std::move(frame)), layout(value.layout()), dtype(value.dtype()) {}
    DTensor Unpack(const char* op) override {
      if (!value) frame->Recompute(op);
      return value->Get(op);
    }
    std::shared_ptr<Frame> frame;
    Layout layout;
    DType dtype;
    std::optional<Saved> value;  // Once it was computed again.
  };
  class Hooks final : public SavedTensorHooks {
   public:
    explicit Hooks(Frame* frame) : frame_(frame) {}
    std::shared_ptr<PackedTensor> Pack(const DTensor& value) override {
      return frame_->Pack(value);
    }

   private:
    Frame* frame_;
  };
  // Of a graph that is dropped.
  struct Nothing final : PackedTensor {
    DTensor Unpack(const char* op) override {
      Throw(
          absl::StatusCode::kFailedPrecondition, "backward of ", op,
          ": its op belongs to the recomputation of Checkpoint, which has no backward of its own");
    }
  };

  void Open(Phase phase) {
    phase_ = phase;
    outer_ = static_cast<Frame*>(runtime_.checkpoint);
    outer_hooks_ = runtime_.saved_tensor_hooks;
    hooks_ = std::make_shared<Hooks>(this);
    runtime_.checkpoint = this;
    runtime_.saved_tensor_hooks = hooks_;
  }

  std::shared_ptr<PackedTensor> Pack(const DTensor& value) {
    if (phase_ == Phase::kRecording) {
      auto slot = std::make_shared<Slot>(shared_from_this(), value);
      slots_.push_back(slot);
      return slot;
    }
    if (next_slot_ == slots_.size())
      ThrowDiffers(absl::StrCat("saves ", value.ToString(), " for backward"));
    if (const std::shared_ptr<Slot> slot = slots_[next_slot_++].lock()) {
      if (!(slot->layout == value.layout()) || slot->dtype != value.dtype()) {
        ThrowDiffers(absl::StrCat("saves ", value.ToString(), " where it saved ",
                                  std::string(Name(slot->dtype)), slot->layout.ToString()));
      }
      // As it is, whatever hooks there are.
      const std::shared_ptr<SavedTensorHooks> hooks =
          std::exchange(runtime_.saved_tensor_hooks, nullptr);
      slot->value.emplace(value);
      runtime_.saved_tensor_hooks = hooks;
    }
    return std::make_shared<Nothing>();
  }

  bool CheckOp(const Op& op, std::span<const DTensor* const> operands) {
    if (next_note_ == notes_.size()) ThrowDiffers(absl::StrCat("calls ", op.name));
    const Note& note = notes_[next_note_++];
    if (note.op != &op || note.operands.size() != operands.size())
      ThrowDiffers(absl::StrCat("calls ", op.name, " where it called ", note.op->name));
    for (size_t i = 0; i < operands.size(); ++i) {
      const std::shared_ptr<Storage>& storage = operands[i]->local().storage();
      if (note.operands[i].storage.lock() != storage) continue;  // Computed again.
      if (note.operands[i].version == storage->version()) continue;
      Throw(absl::StatusCode::kFailedPrecondition, "Checkpoint: the recomputation has come to ",
            op.name, " of ", operands[i]->ToString(),
            ", which was written in place after forward (version ", storage->version(),
            ", in forward ", note.operands[i].version,
            "); write it after Backward, or, if the function writes it, in OnceInCheckpoint");
    }
    return note.records;
  }

  [[noreturn]] void ThrowDiffers(const std::string& what) const {
    Throw(absl::StatusCode::kFailedPrecondition, "Checkpoint: the recomputation ", what,
          ", unlike forward (op ", next_note_, " of ", notes_.size(),
          "); a checkpointed function must do the same both times (random numbers and counters by "
          "OnceInCheckpoint; train and eval may not change before Backward)");
  }

  std::vector<DTensor> NextKept() {
    if (next_kept_ == kept_.size()) ThrowDiffers("comes to one more KeepInCheckpoint");
    std::vector<DTensor> results;
    for (const Input& kept : kept_[next_kept_]) results.push_back(kept.Get());
    kept_[next_kept_++].clear();
    return results;
  }

  void Recompute(const char* op) {
    if (phase_ == Phase::kRecording) {
      Throw(absl::StatusCode::kFailedPrecondition, "backward of ", op,
            ": a Backward within a function that Checkpoint calls is not possible");
    }
    if (phase_ != Phase::kRecorded) {
      Throw(absl::StatusCode::kFailedPrecondition, "backward of ", op,
            ": the recomputation of its Checkpoint has failed before");
    }
    const std::shared_ptr<Frame> self = shared_from_this();
    try {
      Replay();
    } catch (...) {
      // What has come so far may be of another computation.
      for (const std::weak_ptr<Slot>& weak : slots_) {
        if (const std::shared_ptr<Slot> slot = weak.lock()) slot->value.reset();
      }
      Finish(Phase::kFailed);
      throw;
    }
    Finish(Phase::kReplayed);
  }

  void Replay() {
    std::vector<DTensor> inputs;
    for (const Input& input : inputs_) inputs.push_back(input.Get());
    inputs_.clear();
    const RuntimeState before(runtime_);
    runtime_.grad_enabled = true;
    runtime_.partial_precision = partial_precision_;
    runtime_.region = nullptr;
    runtime_.checkpoint = nullptr;
    runtime_.saved_tensor_hooks = nullptr;
    std::vector<std::shared_ptr<void>> resumed = ResumeRegions();
    const absl::Cleanup pause = [&] {
      while (!resumed.empty()) resumed.pop_back();
    };
    Open(Phase::kReplaying);
    fn_(inputs);
    if (next_note_ != notes_.size())
      ThrowDiffers(absl::StrCat("ends before ", notes_[next_note_].op->name));
    if (next_slot_ != slots_.size()) ThrowDiffers("saves less for backward");
  }

  void Finish(Phase phase) {
    phase_ = phase;
    fn_ = nullptr;
    inputs_.clear();
    notes_.clear();
    slots_.clear();
    values_.clear();
    kept_.clear();
    region_ = nullptr;
  }

  // Those in which forward was, outer ones first.
  std::vector<std::shared_ptr<void>> ResumeRegions() const {
    std::vector<BackwardRegion*> regions;
    for (BackwardRegion* region = region_.get(); region != nullptr; region = region->outer().get())
      regions.push_back(region);
    std::vector<std::shared_ptr<void>> resumed;
    for (auto region = regions.rbegin(); region != regions.rend(); ++region)
      resumed.push_back((*region)->Resume());
    return resumed;
  }

  Runtime& runtime_;
  CheckpointOptions options_;
  std::shared_ptr<BackwardRegion> region_;
  PartialPrecision partial_precision_;
  Function fn_;
  std::vector<Input> inputs_;

  Phase phase_ = Phase::kRecorded;
  // While the function runs.
  Frame* outer_ = nullptr;
  std::shared_ptr<SavedTensorHooks> outer_hooks_;
  std::shared_ptr<Hooks> hooks_;

  // Of forward, and how far the recomputation has come.
  std::vector<Note> notes_;
  std::vector<std::weak_ptr<Slot>> slots_;
  std::vector<std::any> values_;
  std::vector<std::vector<Input>> kept_;
  size_t next_note_ = 0, next_slot_ = 0, next_value_ = 0, next_kept_ = 0;
};

}  // namespace

std::vector<DTensor> Checkpoint(Function fn, const std::vector<DTensor>& inputs,
                                const CheckpointOptions& options) {
  if (fn == nullptr) ThrowInvalid("Checkpoint: the function is empty");
  const auto first = std::find_if(inputs.begin(), inputs.end(),
                                  [](const DTensor& input) { return static_cast<bool>(input); });
  if (first == inputs.end()) ThrowInvalid("Checkpoint: none of the inputs is a tensor");
  for (const DTensor& input : inputs) {
    if (!input) continue;
    internal::CheckUsable("Checkpoint", input);
    internal::CheckTogether("Checkpoint", *first, input);
  }
  Runtime& runtime = *first->impl()->runtime;
  if (!runtime.grad_enabled) return fn(inputs);
  return std::make_shared<Frame>(runtime, std::move(fn), inputs, options)->Record(inputs);
}

DTensor Checkpoint(std::function<DTensor(const DTensor& x)> fn, const DTensor& x,
                   const CheckpointOptions& options) {
  if (fn == nullptr) ThrowInvalid("Checkpoint: the function is empty");
  const std::vector<DTensor> results = Checkpoint(
      [fn = std::move(fn)](std::span<const DTensor> inputs) -> std::vector<DTensor> {
        return {fn(inputs[0])};
      },
      {x}, options);
  return results[0];
}

bool IsRecomputing(const DeviceMesh& mesh) {
  for (const Frame* frame = static_cast<Frame*>(Runtime::Of(mesh).checkpoint); frame != nullptr;
       frame = frame->outer()) {
    if (frame->is_replaying()) return true;
  }
  return false;
}

std::vector<DTensor> KeepInCheckpoint(const DeviceMesh& mesh,
                                      absl::FunctionRef<std::vector<DTensor>()> fn) {
  auto* const frame = static_cast<Frame*>(Runtime::Of(mesh).checkpoint);
  return frame == nullptr ? fn() : frame->Keep(fn);
}

namespace internal {

std::any RunOnce(const DeviceMesh& mesh, absl::FunctionRef<std::any()> fn) {
  Runtime& runtime = Runtime::Of(mesh);
  if (runtime.checkpoint == nullptr) return fn();
  // Of all that are open; of those that are computed again at least the outermost is, and has it.
  std::any value;
  bool has_value = false;
  for (auto* frame = static_cast<Frame*>(runtime.checkpoint); frame != nullptr;
       frame = frame->outer()) {
    if (!frame->is_replaying()) continue;
    value = frame->NextValue();
    has_value = true;
  }
  if (!has_value) {
    const RuntimeState before(runtime);
    runtime.checkpoint = nullptr;
    runtime.saved_tensor_hooks = nullptr;
    runtime.grad_enabled = false;
    value = fn();
  }
  for (auto* frame = static_cast<Frame*>(runtime.checkpoint); frame != nullptr;
       frame = frame->outer()) {
    if (!frame->is_replaying()) frame->PushValue(value);
  }
  return value;
}

DTensor Kept(const DTensor& x, absl::FunctionRef<DTensor()> fn) {
  return KeepInCheckpoint(x.mesh(), [&]() -> std::vector<DTensor> { return {fn()}; })[0];
}

}  // namespace internal
}  // namespace shardmesh
