// SPDX-License-Identifier: Apache-2.0
//
// Parameters and gradients that a test knows.
//
//   nn::Parameter w = MakeParameter(mesh, "up.weight", {Shard(0)}, {7, 3}, /*seed=*/1);
//   SetGrad(w, /*seed=*/11);
#ifndef SHARDMESH_OPTIM_TESTING_PARAMETERS_H_
#define SHARDMESH_OPTIM_TESTING_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/nn/parameter.h"

namespace shardmesh::optim::testing {

using shardmesh::testing::ErrorOf;
using shardmesh::testing::OnMesh;

/// f64, with values of mixed signs that depend on the seed alone.
inline nn::Parameter MakeParameter(const DeviceMesh& mesh, const std::string& name,
                                   const std::vector<Placement>& placements, const Dims& shape,
                                   uint64_t seed) {
  nn::Parameter parameter(shape, DType::kF64, nn::Init::Constant(0));
  parameter.set_name(name);
  parameter.Place(mesh, Layout::Make(mesh.shape(), placements, shape));
  parameter.SetData(
      shardmesh::testing::Place(mesh, parameter.layout(), shardmesh::testing::Values(shape, seed)));
  return parameter;
}

/// The same for a gradient, in the parameter's layout.
inline void SetGrad(const nn::Parameter& parameter, uint64_t seed) {
  DTensor leaf = parameter.data();
  leaf.SetGrad(shardmesh::testing::Place(leaf.mesh(), leaf.layout(),
                                         shardmesh::testing::Values(leaf.shape(), seed)));
}

/// All values. Collective.
inline std::vector<double> ValuesOf(const DTensor& x) { return FullTensor(x).ToVector<double>(); }
inline std::vector<double> ValuesOf(const nn::Parameter& x) { return ValuesOf(x.data()); }

}  // namespace shardmesh::optim::testing

#endif  // SHARDMESH_OPTIM_TESTING_PARAMETERS_H_
