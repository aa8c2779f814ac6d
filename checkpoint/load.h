// SPDX-License-Identifier: Apache-2.0
//
// Loads a checkpoint into live objects, on any mesh and in any layout.
//
//   StateDict state;
//   state.Merge("model", nn::State(model));          // on meta: created in its shards
//   state.Merge("optim", optimizer.State());
//   state.Bind("step", &step);
//   absl::Status status = checkpoint::Load("run/step-100", state);
#ifndef SHARDMESH_CHECKPOINT_LOAD_H_
#define SHARDMESH_CHECKPOINT_LOAD_H_

#include <string>

#include "absl/status/status.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/file_system.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::checkpoint {

struct LoadOptions {
  /// What the checkpoint lacks stays as it is.
  bool allow_missing = false;
  /// What the state lacks is left out.
  bool allow_unexpected = false;
  /// Values of another dtype are converted as SafetensorsFile::ReadBox does: to nearest, and one
  /// that an integer does not represent, or that would become infinite, is kOutOfRange.
  bool allow_cast = false;
  /// Read each piece that is used as a whole first, and compare its checksum.
  bool verify = false;
  /// Replicas of a box share its bytes: each is read once, by one of them, and sent to the others.
  /// For files that are slower than the ranks' network, or on many replicas. Meshes on which all
  /// ranks load. Plain tensors are still read by each rank.
  bool share_reads = false;
  /// With which a rank reads, at least 1. More help where a file system serves one thread slowly.
  int threads = 2;
  /// Sees what is read (FileSystem::BeforeRead), on all threads. Default: none.
  FileSystem* files = nullptr;
  /// As SaveOptions::ranks.
  Communicator* ranks = nullptr;
};

/// Reads what Save has written, a directory of Hugging Face's, or boxes of PyTorch's distributed
/// checkpoint (Contents::Open), into the tensors and variables of `state`: tensors in place, those
/// without values in new memory. Each rank reads the bytes of its own boxes. Names and aliases of
/// both sides match; an entry with `clear` that the checkpoint lacks is cleared.
///
/// Collective over the ranks. Memory: the index (some 400 bytes per box that was saved), 5 MiB per
/// thread, and one tensor where the checkpoint has it twice.
/// Errors: the same on all ranks, naming the first rank that failed: kInvalidArgument listing all
///         that is missing, not expected, of another shape, dtype or kind, before anything is
///         changed; those of Contents::Open; kDataLoss naming file and tensor if a file is not what
///         the index says or a checksum is wrong; the system's. After an error of
///         reading tensors are undefined, and variables as they were.
absl::Status Load(const std::string& directory, StateDict& state, const LoadOptions& options = {});

/// Reads every byte of a checkpoint and compares headers and checksums, where it has them. Local.
/// Errors: those of Contents::Open; kDataLoss naming file and tensor.
absl::Status Verify(const std::string& directory);

}  // namespace shardmesh::checkpoint

#endif  // SHARDMESH_CHECKPOINT_LOAD_H_
