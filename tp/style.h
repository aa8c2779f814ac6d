// SPDX-License-Identifier: Apache-2.0
//
// How tensor parallelism changes one module.
//
//   | style              | weight [n, k] | table [v, h] | bias | input          | output          |
//   |--------------------|---------------|--------------|------|----------------|-----------------|
//   | Colwise(out)       | S(0)          | S(1)         | S(0) | unchanged      | S(-1), or out   |
//   | Rowwise(out)       | S(1)          | S(0)         | R    | unchanged      | R, or out       |
//   | Sequence()         | R             | R            | R    | moved to S(1)  | S(1)            |
//   | PrepareInput(in)   | -             | -            | -    | moved to in    | unchanged       |
//   | PrepareOutput(out) | -             | -            | -    | unchanged      | moved to out    |
#ifndef SHARDMESH_TP_STYLE_H_
#define SHARDMESH_TP_STYLE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/placement/placement.h"

namespace shardmesh::tp {

/// Immutable. Derive from it to define another style.
class Style {
 public:
  /// The placement of one of the module's parameters along the axis.
  struct Placed {
    nn::Parameter parameter;
    Placement placement;
  };

  virtual ~Style() = default;
  /// The placements of the module's own parameters; those not listed are replicated. Changes
  /// nothing. `axis` is the index of the tensor-parallel axis in `mesh`.
  /// Errors: throws Error(kInvalidArgument) naming `name` if the module does not fit.
  virtual std::vector<Placed> PlaceParameters(nn::Module& module, const std::string& name,
                                              const DeviceMesh& mesh, int axis) const;
  /// Installs hooks. Called after the whole plan has been checked and parameters are placed.
  virtual void Apply(nn::Module& module, const std::string& name, const DeviceMesh& mesh,
                     int axis) const = 0;
  /// "Rowwise(S(1))".
  virtual std::string ToString() const = 0;
};
using StylePtr = std::shared_ptr<const Style>;

/// Of a Linear or an Embedding. Weight [n, k] (and bias) sharded over n; embedding [v, h] over h.
/// Output sharded on its last dim unless `output` says otherwise.
StylePtr Colwise();
StylePtr Colwise(Placement output);
/// Of a Linear or an Embedding. Weight [n, k] sharded over k; embedding [v, h] over v
/// (vocabulary-parallel). The Partial output is moved to `output` (Shard(1) for sequence
/// parallelism). The bias is added once, after that.
StylePtr Rowwise(Placement output = Replicate());
/// Parameters replicated, activations sharded on dim 1 (sequence) at input and output: norms,
/// dropout.
StylePtr Sequence();
/// Redistributes the first input to `input`; in backward its gradient gets the layout that the
/// input had. If the input is replicated and stays so, its gradient is reduced here, once for all
/// uses inside the module.
StylePtr PrepareInput(Placement input);
/// The same of several inputs, by position; nullopt leaves one as it comes, as does a call that
/// passes no tensor there. A call with fewer inputs is an error.
StylePtr PrepareInputs(std::vector<std::optional<Placement>> inputs);
/// Redistributes the first result (or several, by position) to `output`.
StylePtr PrepareOutput(Placement output);
StylePtr PrepareOutputs(std::vector<std::optional<Placement>> outputs);
/// As `style`, but summands of bf16 and f16 that the module makes, forward and backward, are held
/// and reduced in that dtype instead of f32: half the bytes on the wire, p + 1 roundings for p
/// ranks instead of one (dtensor/partial_precision.h).
StylePtr SmallPartials(StylePtr style);

/// `x` with `placement` along mesh axis `axis`, other axes unchanged; negative shard dims count
/// from the last. A differentiable Redistribute even if the layout does not change
/// (dtensor/dtensor.h says what that means for the gradient).
/// Errors: throws Error(kInvalidArgument) naming `what` if there is no such dim.
DTensor MoveAxis(const DTensor& x, int axis, Placement placement, const std::string& what);

}  // namespace shardmesh::tp

#endif  // SHARDMESH_TP_STYLE_H_
