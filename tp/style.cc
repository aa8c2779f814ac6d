// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tp/style.h"

#include <optional>
#include <typeinfo>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/partial_precision.h"
#include "shardmesh/nn/embedding.h"
#include "shardmesh/nn/linear.h"

namespace shardmesh::tp {
namespace {

/// Redistributes only if the layout changes: such an output needs no anchor for its gradient.
void MoveOutput(DTensor& output, int axis, Placement placement, const std::string& what) {
  if (placement.IsShard()) {
    placement = Shard(NormalizeDim(placement.dim(), output.num_dims(), what.c_str()));
  }
  if (output.layout().placement(axis) == placement) return;
  output = MoveAxis(output, axis, placement, what);
}

void AddMoveOutputHook(nn::Module& module, const std::string& name, int axis, Placement placement) {
  module.AddForwardHook([=, what = absl::StrCat("output of ", name)](nn::Module&, const nn::Inputs&,
                                                                     nn::Outputs& outputs) {
    MoveOutput(outputs[0], axis, placement, what);
  });
}

void CheckHeads(const std::string& style, const std::string& name, int64_t heads,
                const DeviceMesh& mesh, int axis) {
  const MeshAxis& mesh_axis = mesh.shape().axis(axis);
  if (heads == 0 || heads % mesh_axis.size == 0) return;
  ThrowInvalid(style, " of ", name, ": axis ", mesh_axis.name, " of size ", mesh_axis.size,
               " does not divide its ", heads, " heads, and a head cannot be cut");
}

[[noreturn]] void ThrowUnfit(const std::string& style, const std::string& name) {
  ThrowInvalid(style, " of ", name, ": it fits nn::Linear and nn::Embedding alone");
}

class ColwiseStyle final : public Style {
 public:
  explicit ColwiseStyle(std::optional<Placement> output) : output_(output) {}

  std::vector<Placed> PlaceParameters(nn::Module& module, const std::string& name,
                                      const DeviceMesh& mesh, int axis) const override {
    if (const auto* linear = dynamic_cast<const nn::Linear*>(&module)) {
      CheckHeads(ToString(), name, linear->output_heads(), mesh, axis);
      std::vector<Placed> placed = {{linear->weight(), Shard(0)}};
      if (linear->bias()) placed.push_back({linear->bias(), Shard(0)});
      return placed;
    }
    if (const auto* embedding = dynamic_cast<const nn::Embedding*>(&module)) {
      return {{embedding->weight(), Shard(1)}};
    }
    ThrowUnfit(ToString(), name);
  }

  void Apply(nn::Module& module, const std::string& name, const DeviceMesh&,
             int axis) const override {
    AddMoveOutputHook(module, name, axis, output_.value_or(Shard(-1)));
  }

  std::string ToString() const override {
    return output_ ? absl::StrCat("Colwise(", output_->ToString(), ")") : "Colwise()";
  }

 private:
  std::optional<Placement> output_;
};

class RowwiseStyle final : public Style {
 public:
  explicit RowwiseStyle(Placement output) : output_(output) {}

  std::vector<Placed> PlaceParameters(nn::Module& module, const std::string& name,
                                      const DeviceMesh& mesh, int axis) const override {
    if (const auto* linear = dynamic_cast<const nn::Linear*>(&module)) {
      CheckHeads(ToString(), name, linear->input_heads(), mesh, axis);
      if (linear->bias() && typeid(module) != typeid(nn::Linear)) {
        ThrowInvalid(ToString(), " of ", name,
                     ": a class derived from nn::Linear that has a bias may have a forward of its "
                     "own, and the bias must be added after the product is reduced");
      }
      return {{linear->weight(), Shard(1)}};
    }
    if (const auto* embedding = dynamic_cast<const nn::Embedding*>(&module)) {
      return {{embedding->weight(), Shard(0)}};
    }
    ThrowUnfit(ToString(), name);
  }

  void Apply(nn::Module& module, const std::string& name, const DeviceMesh&,
             int axis) const override {
    const auto* linear = dynamic_cast<const nn::Linear*>(&module);
    if (linear == nullptr || !linear->bias()) return AddMoveOutputHook(module, name, axis, output_);
    // The Partial product is reduced before the bias is added: once, and not once a rank.
    module.SetForward([linear, axis, placement = output_,
                       what = absl::StrCat("output of ", name)](const nn::Inputs& x) {
      DTensor product = Linear(x[0], linear->weight().active());
      MoveOutput(product, axis, placement, what);
      return product + linear->bias().active();
    });
  }

  std::string ToString() const override {
    return absl::StrCat("Rowwise(", output_.ToString(), ")");
  }

 private:
  Placement output_;
};

class SequenceStyle final : public Style {
 public:
  void Apply(nn::Module& module, const std::string& name, const DeviceMesh&,
             int axis) const override {
    module.AddForwardPreHook(
        [axis, what = absl::StrCat("input of ", name)](nn::Module&, nn::Inputs& inputs) {
          if (inputs.empty()) ThrowInvalid(what, ": there is none");
          MoveOutput(inputs[0], axis, Shard(1), what);
        });
    AddMoveOutputHook(module, name, axis, Shard(1));
  }
  std::string ToString() const override { return "Sequence()"; }
};

using Placements = std::vector<std::optional<Placement>>;

// "PrepareInput(R)", "PrepareInputs(R, -, S(1))".
std::string StyleName(const std::string& singular, const Placements& placements) {
  const auto name = [](std::string* out, const std::optional<Placement>& placement) {
    out->append(placement ? placement->ToString() : "-");
  };
  return absl::StrCat(singular, placements.size() == 1 ? "(" : "s(",
                      absl::StrJoin(placements, ", ", name), ")");
}

// Moves values of a call by position. `what`: "input" or "output", `name`: the module's.
template <typename Values>
void MoveEach(Values& values, const Placements& placements, int axis, const std::string& what,
              const std::string& name) {
  if (values.size() < placements.size()) {
    ThrowInvalid(what, " of ", name, ": there are ", values.size(), ", and the plan moves ",
                 placements.size());
  }
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i] || !values[i]) continue;
    std::string which = absl::StrCat(what, " of ", name);
    if (placements.size() > 1) which = absl::StrCat(what, " ", i, " of ", name);
    values[i] = MoveAxis(values[i], axis, *placements[i], which);
  }
}

class PrepareInputsStyle final : public Style {
 public:
  explicit PrepareInputsStyle(Placements inputs) : inputs_(std::move(inputs)) {}
  void Apply(nn::Module& module, const std::string& name, const DeviceMesh&,
             int axis) const override {
    module.AddForwardPreHook([=, placements = inputs_](nn::Module&, nn::Inputs& inputs) {
      MoveEach(inputs, placements, axis, "input", name);
    });
  }
  std::string ToString() const override { return StyleName("PrepareInput", inputs_); }

 private:
  Placements inputs_;
};

class PrepareOutputsStyle final : public Style {
 public:
  explicit PrepareOutputsStyle(Placements outputs) : outputs_(std::move(outputs)) {}
  void Apply(nn::Module& module, const std::string& name, const DeviceMesh&,
             int axis) const override {
    module.AddForwardHook(
        [=, placements = outputs_](nn::Module&, const nn::Inputs&, nn::Outputs& outputs) {
          MoveEach(outputs, placements, axis, "output", name);
        });
  }
  std::string ToString() const override { return StyleName("PrepareOutput", outputs_); }

 private:
  Placements outputs_;
};

class SmallPartialsStyle final : public Style {
 public:
  explicit SmallPartialsStyle(StylePtr style) : style_(std::move(style)) {}

  std::vector<Placed> PlaceParameters(nn::Module& module, const std::string& name,
                                      const DeviceMesh& mesh, int axis) const override {
    return style_->PlaceParameters(module, name, mesh, axis);
  }
  void Apply(nn::Module& module, const std::string& name, const DeviceMesh& mesh,
             int axis) const override {
    style_->Apply(module, name, mesh, axis);
    module.AddForwardScope([mesh] {
      return std::make_shared<PartialPrecisionScope>(mesh, PartialPrecision::kTensor);
    });
  }
  std::string ToString() const override {
    return absl::StrCat("SmallPartials(", style_->ToString(), ")");
  }

 private:
  StylePtr style_;
};

}  // namespace

std::vector<Style::Placed> Style::PlaceParameters(nn::Module&, const std::string&,
                                                  const DeviceMesh&, int) const {
  return {};
}

StylePtr Colwise() { return std::make_shared<ColwiseStyle>(std::nullopt); }
StylePtr Colwise(Placement output) { return std::make_shared<ColwiseStyle>(output); }
StylePtr Rowwise(Placement output) { return std::make_shared<RowwiseStyle>(output); }
StylePtr Sequence() { return std::make_shared<SequenceStyle>(); }
StylePtr PrepareInput(Placement input) { return PrepareInputs({input}); }
StylePtr PrepareInputs(std::vector<std::optional<Placement>> inputs) {
  if (inputs.empty()) ThrowInvalid("PrepareInputs: the list of placements is empty");
  return std::make_shared<PrepareInputsStyle>(std::move(inputs));
}
StylePtr PrepareOutput(Placement output) { return PrepareOutputs({output}); }
StylePtr PrepareOutputs(std::vector<std::optional<Placement>> outputs) {
  if (outputs.empty()) ThrowInvalid("PrepareOutputs: the list of placements is empty");
  return std::make_shared<PrepareOutputsStyle>(std::move(outputs));
}
StylePtr SmallPartials(StylePtr style) {
  if (style == nullptr) ThrowInvalid("SmallPartials: there is no style");
  return std::make_shared<SmallPartialsStyle>(std::move(style));
}

DTensor MoveAxis(const DTensor& x, int axis, Placement placement, const std::string& what) {
  if (placement.IsShard()) {
    placement = Shard(NormalizeDim(placement.dim(), x.num_dims(), what.c_str()));
  }
  return Redistribute(x, x.layout().With(axis, placement));
}

}  // namespace shardmesh::tp
