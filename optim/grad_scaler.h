// SPDX-License-Identifier: Apache-2.0
//
// Dynamic loss scaling, as torch.amp.GradScaler: gradients that pass through f16 are multiplied by
// a large scale so that they do not vanish, and divided by it again in f32. A step whose gradients
// overflow is skipped on every rank, and the scale halves; after many good steps it doubles.
//
//   optim::GradScaler scaler;
//   for (...) {
//     Backward(scaler.Scale(loss));               // forward casts to f16; parameters are f32
//     scaler.Unscale(model.Parameters());         // only to read or clip gradients before Step
//     optim::ClipGradNorm(model.Parameters(), 1.0);
//     scaler.Step(optimizer);                     // optimizer.Step(), or nothing
//     scaler.Update();
//   }
#ifndef SHARDMESH_OPTIM_GRAD_SCALER_H_
#define SHARDMESH_OPTIM_GRAD_SCALER_H_

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardmesh/nn/parameter.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::optim {

struct GradScalerOptions {
  double initial_scale = 65536;    ///< A normal f32.
  double growth_factor = 2;        ///< More than 1.
  double backoff_factor = 0.5;     ///< Between 0 and 1, both excluded.
  int64_t growth_interval = 2000;  ///< Steps without an inf or nan until the scale grows.
};

/// What a checkpoint keeps, beside the options.
struct GradScalerState {
  double scale = 0;            ///< A normal f32.
  int64_t growth_tracker = 0;  ///< Good updates in a row since the scale changed.
  friend bool operator==(const GradScalerState&, const GradScalerState&) = default;
};

/// Belongs to one rank; all ranks create it alike and call it alike, so that they have one scale.
///
/// A program with several losses and optimizers scales each loss, calls Step once per optimizer,
/// and Update once. Micro-batches: Scale each loss, the rest once per window.
class GradScaler {
 public:
  /// Errors: throws Error(kInvalidArgument) naming an option that is out of range.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// `loss` times the scale, differentiable; in f32 if the loss is bf16 or f16. Compute a loss in
  /// f32 (CrossEntropy does): the gradient of an f16 loss is the scale in f16, which is inf from
  /// 65520 on.
  /// Local: a Partial loss stays Partial.
  /// Errors: throws Error(kInvalidArgument) if the loss is not floating-point, and
  /// Error(kFailedPrecondition) naming a parameter that is unscaled and waits for its Step, as the
  /// gradients of this loss would be added to unscaled ones.
  DTensor Scale(const DTensor& loss);

  /// Divides the gradients by the scale in place, and returns whether all of them are finite.
  /// Parameters without a gradient are allowed, and so are several calls with different parameters;
  /// if a gradient is inf or nan, every optimizer with a parameter of that call skips its step.
  ///
  /// Collective: over each mesh of the parameters, in order of first appearance, one all-reduce of
  ///             three f64 over all its ranks, named grad_scaler, gradients or not; none over one
  ///             rank. A finding travels from mesh to mesh, so meshes that are slices of one mesh
  ///             need not contain each other. Ranks that share no mesh decide apart.
  /// Errors:     throws before a gradient is changed: Error(kFailedPrecondition) if no loss has
  ///             been scaled yet, naming a parameter that was unscaled since the last Update, has
  ///             an f16 gradient, or has gradients that FullyShard has not reduced, and on all
  ///             ranks if their scales differ; Error(kInvalidArgument) if one of the parameters is
  ///             none.
  bool Unscale(const std::vector<nn::Parameter>& parameters);

  /// Calls optimizer.Step() if all gradients of its parameters are finite, else clears them, and
  /// returns whether it stepped. Unscales first, unless Unscale was called for all of them.
  /// `optimizer` is an Optimizer, or any class with parameters() and Step().
  ///
  /// Collective: as Unscale, or local after it.
  /// Errors:     as Unscale; throws Error(kFailedPrecondition) naming a parameter if Unscale was
  ///             called for another one of the optimizer and not for it, or if it had its Step
  ///             since the last Update.
  template <typename Optimizer>
  bool Step(Optimizer& optimizer) {
    const bool is_finite = BeginStep(optimizer.parameters());
    if (is_finite) optimizer.Step();
    EndStep(optimizer.parameters());
    return is_finite;
  }

  /// Ends the step: multiplies the scale by the backoff factor if any gradient since the last
  /// Update was inf or nan, else, after growth_interval updates in a row without one, by the growth
  /// factor (unless f32 cannot hold the product).
  /// Local.
  /// Errors: throws Error(kFailedPrecondition) if no Step was called since the last Update, or
  /// naming a parameter that was unscaled and still has its gradient, and Error(kOutOfRange) if the
  /// scale would fall below the smallest normal f32: the loss itself must be inf or nan then.
  void Update();

  double scale() const { return state_.scale; }
  const GradScalerOptions& options() const { return options_; }

  const GradScalerState& state() const { return state_; }
  /// Local; alike on all ranks.
  /// Errors: throws Error(kInvalidArgument) naming a value that is out of range, and
  /// Error(kFailedPrecondition) between Unscale or Step and Update.
  void set_state(const GradScalerState& state);
  /// The same for a checkpoint: live entries "scale" and "growth_tracker". What sets them throws as
  /// set_state. The scaler must outlive the result.
  StateDict State();

 private:
  struct Unscaled {
    nn::Parameter parameter;  // Keeps the id from being reused.
    bool is_finite = true;
    bool has_stepped = false;
  };

  bool Unscale(std::string_view user, const std::vector<nn::Parameter>& parameters);
  /// Errors: as Unscale's kFailedPrecondition.
  void CheckUnscalable(std::string_view user, const std::vector<nn::Parameter>& parameters) const;
  /// Null if it was not unscaled since the last Update.
  const Unscaled* Find(const nn::Parameter& parameter) const;
  /// Unscales where that was not done; whether all gradients are finite.
  bool BeginStep(const std::vector<nn::Parameter>& parameters);
  void EndStep(const std::vector<nn::Parameter>& parameters);

  GradScalerOptions options_;
  GradScalerState state_;
  bool has_scaled_ = false;  // A loss, ever.
  // Since the last Update:
  bool has_stepped_ = false;
  bool all_finite_ = true;
  std::vector<Unscaled> unscaled_;
  std::unordered_map<const void*, size_t> index_;  // Into unscaled_, by Parameter::id().
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_GRAD_SCALER_H_
