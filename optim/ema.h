// SPDX-License-Identifier: Apache-2.0
//
// An exponential moving average of weights, which often generalises better than the last ones.
//
//   optim::Ema ema(model.Parameters());
//   for (...) {
//     optimizer.Step();
//     ema.Update(/*decay=*/0.999);
//   }
//   {
//     const optim::Ema::Scope averaged = ema.Swap();   // the model has the averages
//     Evaluate(model);
//   }                                                  // and its own weights again
#ifndef SHARDMESH_OPTIM_EMA_H_
#define SHARDMESH_OPTIM_EMA_H_

#include <cstdint>
#include <vector>

#include "shardmesh/nn/parameter.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::optim {

/// Belongs to one rank. Each average has its parameter's layout and dtype: under FullyShard it is a
/// shard. Not copyable: scopes and states hold its address. Everything but Relayout is local.
class Ema {
 public:
  /// The averages begin with the values that the parameters have now. A parameter that appears
  /// twice counts once.
  /// Errors: throws Error(kInvalidArgument) if one of the parameters is none or not floating-point,
  /// Error(kFailedPrecondition) naming one without values.
  explicit Ema(const std::vector<nn::Parameter>& parameters);
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  /// average = decay average + (1 - decay) value, of every parameter, frozen or not.
  /// Errors: throws Error(kInvalidArgument) unless `decay` is 0 to 1; Error(kFailedPrecondition)
  /// during a Swap, and naming a parameter that Parameter::Place has moved; nothing is updated
  /// then.
  void Update(double decay);
  int64_t num_updates() const { return num_updates_; }

  /// While it lives, the parameters have the averages as their values, and the Ema the parameters'.
  /// Data is exchanged by handle, not copied. Its end swaps back, also if an exception ends it.
  class [[nodiscard]] Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Ema;
    explicit Scope(Ema& ema);
    Ema& ema_;
  };
  /// Do not move parameters (Parameter::Place) while the scope lives: the program ends at its end
  /// then. The averages, and no graph that has saved the weights before, may be used.
  /// Errors: throws Error(kFailedPrecondition) if a Swap lives, or a parameter has been moved.
  Scope Swap();

  const std::vector<nn::Parameter>& parameters() const { return parameters_; }
  /// In the order of parameters().
  const std::vector<DTensor>& averages() const { return averages_; }

  /// Moves the averages to the layouts that the parameters have now.
  /// Collective: if any parameter has moved.
  /// Errors:     throws Error(kFailedPrecondition) during a Swap.
  void Relayout();

  /// Live entries: "average.<parameter>" (a DTensor) and "num_updates". The Ema must outlive the
  /// result.
  /// Errors: throws Error(kFailedPrecondition) during a Swap, or naming a parameter that has no
  /// name, or that of another.
  StateDict State();

 private:
  void CheckNotSwapped(const char* user) const;
  void CheckReady(const char* user) const;
  void Exchange();

  std::vector<nn::Parameter> parameters_;
  std::vector<DTensor> averages_;
  int64_t num_updates_ = 0;
  bool is_swapped_ = false;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_EMA_H_
