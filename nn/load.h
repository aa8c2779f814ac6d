// SPDX-License-Identifier: Apache-2.0
//
// Reads a model's parameters from a checkpoint; each rank reads its own boxes and nothing else.
//
//   models::Llama model(config);
//   tp::Parallelize(model, mesh, "tp", models::LlamaTpPlan());
//   SHARDMESH_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(directory));
//   SHARDMESH_RETURN_IF_ERROR(nn::LoadParameters(model, reader));
#ifndef SHARDMESH_NN_LOAD_H_
#define SHARDMESH_NN_LOAD_H_

#include "absl/status/status.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

struct LoadOptions {
  /// Ignore tensors of the checkpoint that the model does not have (old ones hold rotary tables).
  bool allow_unexpected = false;
  /// Convert tensors whose dtype is not that of the model: see SafetensorsFile::ReadBox. A model of
  /// f32 whose file has bf16 needs this, and loses nothing by it.
  bool allow_cast = false;
};

/// Reads every parameter and persistent buffer of `model` and its children from the tensor of the
/// same name. Those that have values are overwritten in place. Begins with Module::PlaceBuffers.
///
/// A tied parameter is read under the first of its names that the checkpoint has. If it has others,
/// they must hold the same: each rank compares its box bit for bit, as the model's dtype, with at
/// most 1 MiB in memory. Ranks that together have every element find every difference, but each
/// finds its own alone.
///
/// Local. Ranks do not compare what they read: the caller makes sure that all read the same files.
/// Errors: throws Error(kFailedPrecondition) naming the first parameter without a mesh. Returns
///         kInvalidArgument listing tensors that are missing, not expected, of another shape or
///         (without allow_cast) of another dtype, before anything is read; else the first error of
///         reading, naming the tensor, or kInvalidArgument naming two tensors of a tied parameter
///         and the element in which they differ (the values of the model are undefined then).
absl::Status LoadParameters(Module& model, const CheckpointReader& checkpoint,
                            const LoadOptions& options = {});

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_LOAD_H_
