// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/optim/internal/mesh_gradients.h"

namespace shardmesh::optim {
namespace {

using internal::MeshGradients;

constexpr double kLeastScale = std::numeric_limits<float>::min();
constexpr double kLargestScale = std::numeric_limits<float>::max();

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

[[noreturn]] void ThrowOutOfOrder(std::string_view user, const std::string& what) {
  Throw(absl::StatusCode::kFailedPrecondition, View(user), ": ", what);
}

[[noreturn]] void ThrowWrongType(const char* what, const char* expected, const StateValue& value) {
  ThrowInvalid("GradScaler: ", what, " is given ", DescribeStateValue(value), ", expected ",
               expected);
}

void CheckScale(const char* what, double scale) {
  if (scale >= kLeastScale && scale <= kLargestScale) return;
  ThrowInvalid("GradScaler: ", what, " is ", scale, ", expected a normal f32, from ", kLeastScale,
               " to ", kLargestScale);
}

GradScalerOptions Checked(const GradScalerOptions& options) {
  CheckScale("initial_scale", options.initial_scale);
  if (!(options.growth_factor > 1) || std::isinf(options.growth_factor)) {
    ThrowInvalid("GradScaler: growth_factor is ", options.growth_factor,
                 ", expected more than 1, and finite");
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    ThrowInvalid("GradScaler: backoff_factor is ", options.backoff_factor,
                 ", expected more than 0 and less than 1");
  }
  if (options.growth_interval < 1) {
    ThrowInvalid("GradScaler: growth_interval is ", options.growth_interval,
                 ", expected 1 or more");
  }
  return options;
}

/// The scale is always an f32, as losses are: gradients are divided by what multiplied the loss.
double RoundedToF32(double scale) { return static_cast<float>(scale); }

/// Whether each element of the gradient is finite, also once it is multiplied by `factor` in its
/// dtype.
bool IsFinite(const DTensor& gradient, double factor) {
  const double largest =
      internal::LargestMagnitude(gradient.mesh().context(), gradient.local()) * factor;
  return VisitFloating(gradient.dtype(), "GradScaler", [&]<typename T>() {
    return std::isfinite(ConvertTo<double>(ConvertTo<T>(largest)));
  });
}

AxisList AxesOfSeveralRanks(const DeviceMesh& mesh) {
  AxisList axes;
  for (int axis = 0; axis < mesh.shape().num_axes(); ++axis) {
    if (mesh.shape().size(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

/// What ranks must agree on; reduced by maximum.
struct Finding {
  bool is_finite = true;
  double least_scale, largest_scale;
};

Finding Reduced(const Finding& own, const DeviceMesh& mesh) {
  const double values[] = {own.is_finite ? 0.0 : 1.0, -own.least_scale, own.largest_scale};
  const std::vector<double> most =
      internal::AllReduced(mesh, AxesOfSeveralRanks(mesh), values, ReduceOp::kMax, "grad_scaler");
  return {.is_finite = most[0] == 0, .least_scale = -most[1], .largest_scale = most[2]};
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(Checked(options)) {
  state_.scale = RoundedToF32(options.initial_scale);
}

DTensor GradScaler::Scale(const DTensor& loss) {
  if (!IsFloating(loss.dtype())) {
    ThrowInvalid("GradScaler::Scale: the loss is ", loss.ToString(),
                 ", expected a floating-point dtype");
  }
  for (const Unscaled& entry : unscaled_) {
    if (entry.has_stepped || !entry.parameter.data().grad()) continue;
    ThrowOutOfOrder("GradScaler::Scale",
                    "the gradient of parameter " + entry.parameter.ToString() +
                        " is unscaled, and that of this loss would be added to it; scale all "
                        "losses before Unscale, or call Step first");
  }
  has_scaled_ = true;
  const bool is_small = SizeOf(loss.dtype()) < SizeOf(DType::kF32);
  return Mul(is_small ? Cast(loss, DType::kF32) : loss, state_.scale);
}

bool GradScaler::Unscale(const std::vector<nn::Parameter>& parameters) {
  return Unscale("GradScaler::Unscale", parameters);
}

void GradScaler::CheckUnscalable(std::string_view user,
                                 const std::vector<nn::Parameter>& parameters) const {
  if (!has_scaled_) {
    ThrowOutOfOrder(user,
                    "no loss has been scaled, so gradients would become too small; call "
                    "Backward(scaler.Scale(loss))");
  }
  for (const nn::Parameter& parameter : parameters) {
    if (const Unscaled* before = Find(parameter)) {
      ThrowOutOfOrder(user, "the gradient of parameter " + parameter.ToString() +
                                (before->has_stepped ? " had its Step" : " was unscaled") +
                                " already; call Unscale once per parameter, then Step, then "
                                "Update, which begins the next step");
    }
    if (parameter.data().grad() && parameter.dtype() == DType::kF16) {
      ThrowOutOfOrder(user, "the gradient of parameter " + parameter.ToString() +
                                " is f16, and unscaled it would vanish; keep f32 parameters and "
                                "cast them in forward (fsdp::MixedPrecision::param_dtype)");
    }
  }
}

bool GradScaler::Unscale(std::string_view user, const std::vector<nn::Parameter>& parameters) {
  const std::vector<MeshGradients> groups = internal::GradientsByMesh(user, parameters);
  CheckUnscalable(user, parameters);
  const double factor = 1 / state_.scale;
  Finding finding = {.least_scale = state_.scale, .largest_scale = state_.scale};
  for (const MeshGradients& group : groups) {
    for (const DTensor& leaf : group.leaves) {
      finding.is_finite = finding.is_finite && IsFinite(leaf.grad(), factor);
    }
  }
  // What one mesh has found goes on to the next, so each carries what this rank knows by then.
  for (const MeshGradients& group : groups) finding = Reduced(finding, group.mesh);
  if (finding.least_scale != finding.largest_scale) {
    ThrowOutOfOrder(user, absl::StrCat("ranks have scales from ", finding.least_scale, " to ",
                                       finding.largest_scale,
                                       "; create the scaler and restore its state alike on all "
                                       "ranks"));
  }
  internal::MultiplyGradients(groups, factor);
  for (const nn::Parameter& parameter : parameters) {
    const bool is_new = index_.emplace(parameter.id(), unscaled_.size()).second;
    if (is_new) unscaled_.push_back({parameter, finding.is_finite});
  }
  all_finite_ = all_finite_ && finding.is_finite;
  return finding.is_finite;
}

const GradScaler::Unscaled* GradScaler::Find(const nn::Parameter& parameter) const {
  const auto found = index_.find(parameter.id());
  return found == index_.end() ? nullptr : &unscaled_[found->second];
}

bool GradScaler::BeginStep(const std::vector<nn::Parameter>& parameters) {
  constexpr char kUser[] = "GradScaler::Step";
  const nn::Parameter* missing = nullptr;
  const Unscaled* present = nullptr;
  bool is_finite = true;
  for (const nn::Parameter& parameter : parameters) {
    const Unscaled* entry = Find(parameter);
    if (entry == nullptr) {
      missing = &parameter;
      continue;
    }
    if (entry->has_stepped) {
      ThrowOutOfOrder(kUser, "parameter " + parameter.ToString() +
                                 " had its Step since the last Update; call Update once, after "
                                 "one Step per optimizer");
    }
    present = entry;
    is_finite = is_finite && entry->is_finite;
  }
  if (missing == nullptr) return is_finite;
  if (present == nullptr) return Unscale(kUser, parameters);
  ThrowOutOfOrder(kUser, "Unscale was called for parameter " + present->parameter.ToString() +
                             " and not for " + missing->ToString() +
                             " of the same optimizer; pass all of them to Unscale, or none");
}

void GradScaler::EndStep(const std::vector<nn::Parameter>& parameters) {
  for (const nn::Parameter& parameter : parameters) {
    unscaled_[index_.at(parameter.id())].has_stepped = true;
    // Of a skipped step; the optimizer clears what it has applied.
    DTensor leaf = parameter.data();
    leaf.ZeroGrad();
  }
  has_stepped_ = true;
}

void GradScaler::Update() {
  constexpr char kUser[] = "GradScaler::Update";
  if (!has_stepped_) {
    ThrowOutOfOrder(kUser,
                    "there was no Step since the last Update; call Step(optimizer) first, once per "
                    "optimizer");
  }
  for (const Unscaled& entry : unscaled_) {
    if (entry.has_stepped || !entry.parameter.data().grad()) continue;
    ThrowOutOfOrder(kUser, "parameter " + entry.parameter.ToString() +
                               " was unscaled and still has its gradient; call Step for the "
                               "optimizer that has it, or clear it with ZeroGrad");
  }
  GradScalerState next = state_;
  if (!all_finite_) {
    next = {.scale = RoundedToF32(state_.scale * options_.backoff_factor), .growth_tracker = 0};
    if (next.scale < kLeastScale) {
      Throw(absl::StatusCode::kOutOfRange, kUser, ": gradients are inf or nan although the scale ",
            "is only ", state_.scale, "; the loss or a gradient is inf or nan without a scale");
    }
  } else if (++next.growth_tracker >= options_.growth_interval) {
    const double grown = state_.scale * options_.growth_factor;
    next = {.scale = grown <= kLargestScale ? RoundedToF32(grown) : state_.scale,
            .growth_tracker = 0};
  }
  state_ = next;
  has_stepped_ = false;
  all_finite_ = true;
  unscaled_.clear();
  index_.clear();
}

void GradScaler::set_state(const GradScalerState& state) {
  CheckScale("scale", state.scale);
  if (state.growth_tracker < 0) {
    ThrowInvalid("GradScaler: growth_tracker is ", state.growth_tracker, ", expected 0 or more");
  }
  if (has_stepped_ || !unscaled_.empty()) {
    ThrowOutOfOrder("GradScaler::set_state", "a step is not finished; call Update first");
  }
  state_ = {.scale = RoundedToF32(state.scale), .growth_tracker = state.growth_tracker};
}

StateDict GradScaler::State() {
  StateEntry scale;
  scale.name = "scale";
  scale.get = [this] { return StateValue(state_.scale); };
  scale.set = [this](const StateValue& value) {
    const auto* number = std::get_if<double>(&value);
    if (number == nullptr) ThrowWrongType("scale", "f64", value);
    set_state({.scale = *number, .growth_tracker = state_.growth_tracker});
  };
  StateEntry tracker;
  tracker.name = "growth_tracker";
  tracker.get = [this] { return StateValue(state_.growth_tracker); };
  tracker.set = [this](const StateValue& value) {
    const auto* number = std::get_if<int64_t>(&value);
    if (number == nullptr) ThrowWrongType("growth_tracker", "i64", value);
    set_state({.scale = state_.scale, .growth_tracker = *number});
  };
  StateDict state;
  state.Add(std::move(scale));
  state.Add(std::move(tracker));
  return state;
}

}  // namespace shardmesh::optim
