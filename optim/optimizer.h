// SPDX-License-Identifier: Apache-2.0
//
// What all optimizers have in common: parameters in groups with options, steps, state. Trainers,
// schedules, loss scaling, clipping and checkpoints take any of them.
//
//   void Train(optim::Optimizer& optimizer) {
//     optim::ClipGradNorm(optimizer.parameters(), /*max_norm=*/1.0);
//     optimizer.Step();            // applies the gradients and clears them
//     state.Merge("optim", optimizer.State());
//   }
//
// An optimizer of one's own says what its options are and how one parameter's shard is updated:
//
//   struct HeavyBallOptions {
//     double lr = 1e-3;
//     double momentum = 0.9;
//     std::vector<optim::OptionField> Fields() {
//       return {{"lr", &lr}, {"momentum", &momentum, /*low=*/0, /*high=*/1}};
//     }
//   };
//
//   class HeavyBall : public optim::OptimizerOf<HeavyBallOptions> {
//    public:
//     HeavyBall(std::vector<nn::Parameter> parameters, const HeavyBallOptions& options,
//               const std::vector<optim::ParameterGroup<HeavyBallOptions>>& groups = {})
//         : OptimizerOf("HeavyBall", std::move(parameters), options, groups) {}
//
//    protected:
//     std::vector<std::string> StateNames(const HeavyBallOptions&) const override {
//       return {"momentum_buffer"};
//     }
//     void Update(const HeavyBallOptions& options, optim::ParameterUpdate& update) override {
//       Tensor& momentum = update.LocalState("momentum_buffer");
//       ...             // ops of tensor/ops.h on update.value, update.gradient and momentum
//     }
//   };
#ifndef SHARDMESH_OPTIM_OPTIMIZER_H_
#define SHARDMESH_OPTIM_OPTIMIZER_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shardmesh/nn/parameter.h"
#include "shardmesh/optim/parameter_group.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::optim {

/// One option: checked at construction and by what changes it, saved as "groups.<i>.<name>".
struct OptionField {
  const char* name;
  std::variant<double*, int64_t*, bool*> value;
  double low = 0;  ///< low <= value < high; not of a bool.
  double high = std::numeric_limits<double>::infinity();
};

/// What an optimizer keeps for one parameter.
class ParameterState {
 public:
  int64_t step = 0;  ///< Steps taken: those in which the parameter had a gradient.

  /// In the parameter's layout and dtype; no tensor if it does not exist (yet).
  const DTensor& Find(std::string_view name) const;

 private:
  friend class Optimizer;
  friend class ParameterUpdate;
  struct Entry {
    Entry(std::string name, DTensor tensor, bool is_zeros);

    std::string name;
    DTensor tensor;
    // Of `tensor`: a step that reads them here touches less memory.
    Layout layout;
    Tensor local;
    /// Of its storage, when it was filled with zeros; -1 if it was given. As long as that is the
    /// version, no update has written it.
    int64_t zeros_version;
    bool IsNew() const { return zeros_version == local.storage()->version(); }
  };
  const Entry* FindEntry(std::string_view name) const {
    for (const Entry& entry : tensors_) {
      if (entry.name == name) return &entry;
    }
    return nullptr;
  }
  void Erase(std::string_view name);

  std::vector<Entry> tensors_;
  bool is_complete_ = false;  // Whether all that an update may ask for exists.
};

/// One parameter in one step. Lives as long as the call that it is passed to.
class ParameterUpdate {
 public:
  const nn::Parameter& parameter;
  ExecutionContext& context;
  int64_t step;     ///< 1 in the first step of this parameter.
  Tensor value;     ///< This rank's shard, contiguous; written in place.
  Tensor gradient;  ///< Of the same shape, contiguous. Only read it.

  /// The state of this name, zeros before the first step. Its shard, to be written in place on
  /// every rank, elements or not; and all of it, for updates that mix elements.
  /// Errors: throw Error(kInvalidArgument) if StateNames does not list the name.
  Tensor& LocalState(std::string_view name) { return Find(name).local; }
  const DTensor& GlobalState(std::string_view name) { return Find(name).tensor; }
  /// Whether nothing has written the state since it was made of zeros. Local: ranks without
  /// elements may differ.
  bool IsNew(std::string_view name) { return Find(name).IsNew(); }

 private:
  friend class Optimizer;
  ParameterUpdate(const nn::Parameter& parameter, const DTensor& data, ParameterState& state,
                  std::string_view optimizer);
  ParameterState::Entry& Find(std::string_view name) {
    for (ParameterState::Entry& entry : state_.tensors_) {
      if (entry.name == name) return entry;
    }
    ThrowUnknown(name);
  }
  [[noreturn]] void ThrowUnknown(std::string_view name) const;

  ParameterState& state_;
  std::string_view optimizer_;
};

/// Belongs to one rank. Not copyable or movable: schedules and states hold its address.
///
/// State is made at a parameter's first step, or by CreateState, or by loading. Where
/// Parameter::Place has moved a parameter, Relayout() takes its state along; until then Step is
/// refused. (Step does not do it by itself, as it is local.)
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Applies and clears the gradient of each parameter that has one; the others are left alone, and
  /// their step count does not change.
  /// Local, unless the optimizer says otherwise.
  /// Errors: throws Error(kFailedPrecondition) naming the parameter if FullyShard has not reduced
  /// all of its gradient, or its layout is not that of its gradient or state. Nothing is updated
  /// then.
  void Step();
  /// Clears all gradients. Local.
  void ZeroGrad();

  const std::string& name() const { return name_; }  ///< "AdamW".
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }
  /// In the order of the parameters.
  const std::vector<ParameterState>& states() const { return states_; }

  /// Group 0 holds the parameters that no ParameterGroup matches, maybe none, and has the
  /// optimizer's own options; group i is the i-th ParameterGroup, counted from 1.
  int num_groups() const { return num_groups_; }
  /// The group of parameters()[index].
  int group_of(size_t index) const { return groups_[index]; }
  /// Errors: throws Error(kOutOfRange) if there is no such group.
  double lr(int group = 0) const;
  /// Of all groups. Errors: throws Error(kInvalidArgument) if it is negative or not finite.
  void set_lr(double lr);
  /// Of one group. Errors: as both.
  void set_lr(int group, double lr);

  /// Makes all state of all trainable parameters that does not exist, as zeros, in place of their
  /// first steps: so that memory runs out early, or tensors exist to be looked at. Local.
  /// Errors: throws Error(kFailedPrecondition) naming a parameter without values.
  void CreateState();
  /// Moves all state to the layouts that the parameters have now.
  /// Collective: if any parameter has moved.
  void Relayout();

  /// Live entries, in PyTorch's spelling:
  ///
  ///   | name                      | what                                                        |
  ///   |---------------------------|-------------------------------------------------------------|
  ///   | "state.<parameter>.step"  | i64, 0 before the first step                                |
  ///   | "state.<parameter>.<name>"| a DTensor, UnsetTensor while it does not exist; "exp_avg",  |
  ///   |                           | "momentum_buffer" and so on                                 |
  ///   | "groups.<i>.<option>"     | f64, i64 or bool; "lr" and so on                            |
  ///
  /// of each parameter, frozen or not. Loading makes state that does not exist; what a checkpoint
  /// lacks is forgotten (StateEntry::clear): its next step is its first.
  /// Local. The optimizer must outlive the result.
  /// Errors: throws Error(kFailedPrecondition) naming a parameter that has no name, the name of
  /// another, or no mesh yet. What sets an entry throws Error(kInvalidArgument) naming it if the
  /// value is of another type, shape or layout, or out of range.
  StateDict State();

 protected:
  /// Errors: throws Error(kInvalidArgument) if a parameter is none, appears twice, or is neither
  /// f32 nor f64 (mixed precision keeps f32 parameters and casts what it gathers).
  Optimizer(std::string name, std::vector<nn::Parameter> parameters);

  /// For OptimizerOf: the group of each parameter.
  void SetGroups(int num_groups, std::vector<int> groups);
  void CheckFields(const std::vector<OptionField>& fields) const;
  void CheckGroup(int group) const;

 private:
  virtual std::vector<OptionField> FieldsOf(int group) = 0;
  virtual double LrOf(int group) const = 0;
  virtual void SetLrOf(int group, double lr) = 0;
  virtual std::vector<std::string> StateNamesOf(int group) const = 0;
  virtual void UpdateIn(int group, ParameterUpdate& update) = 0;

  /// Throws unless gradient and state are in the layout of the parameter.
  void CheckLayouts(size_t index, const DTensor& data) const;
  /// Makes what does not exist, as zeros.
  void MakeStates(size_t index);
  void GiveState(size_t index, const std::string& name, StateValue value);
  void AddSteps(size_t index, StateDict& state);
  void AddTensor(size_t index, const std::string& name, StateDict& state);
  void AddOption(int group, const OptionField& field, StateDict& state);

  std::string name_, step_name_;
  std::vector<nn::Parameter> parameters_;
  std::vector<ParameterState> states_;
  int num_groups_ = 1;
  std::vector<int> groups_;
};

/// An optimizer with options of type `Options`: a struct with a `double lr` and a
/// `std::vector<OptionField> Fields()` that lists its fields, lr first. If it has a
/// `void Validate(std::string_view optimizer) const`, that is called for each group as well.
template <typename Options>
class OptimizerOf : public Optimizer {
 public:
  /// Errors: throws Error(kOutOfRange) if there is no such group.
  const Options& options(int group = 0) const {
    CheckGroup(group);
    return options_[group];
  }

 protected:
  /// Errors: as Optimizer's and AssignGroups'; throws Error(kInvalidArgument) naming an option that
  /// is out of its range.
  OptimizerOf(std::string name, std::vector<nn::Parameter> parameters, const Options& options,
              const std::vector<ParameterGroup<Options>>& groups)
      : Optimizer(std::move(name), std::move(parameters)), options_(1, options) {
    std::vector<ParameterSelector> selectors;
    for (const ParameterGroup<Options>& group : groups) {
      selectors.push_back(group.parameters);
      Options& own = options_.emplace_back(options);
      if (group.change) group.change(own);
    }
    for (Options& each : options_) {
      CheckFields(each.Fields());
      if constexpr (requires { each.Validate(this->name()); }) each.Validate(this->name());
    }
    SetGroups(static_cast<int>(options_.size()),
              internal::AssignGroups(this->name(), this->parameters(), selectors));
  }

  /// The tensors that an update uses and a checkpoint keeps, each in the parameter's layout.
  virtual std::vector<std::string> StateNames(const Options& options) const = 0;
  /// Updates update.value from update.gradient. Must do the same on all ranks.
  virtual void Update(const Options& options, ParameterUpdate& update) = 0;

 private:
  std::vector<OptionField> FieldsOf(int group) final { return options_[group].Fields(); }
  double LrOf(int group) const final { return options_[group].lr; }
  void SetLrOf(int group, double lr) final { options_[group].lr = lr; }
  std::vector<std::string> StateNamesOf(int group) const final {
    return StateNames(options_[group]);
  }
  void UpdateIn(int group, ParameterUpdate& update) final { Update(options_[group], update); }

  std::vector<Options> options_;  // By group.
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_OPTIMIZER_H_
