// SPDX-License-Identifier: Apache-2.0
//
// The checkpoints of a run, in one directory: which there are, which is the latest, which may go.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<CheckpointManager> manager,
//                    CheckpointManager::Open("run/checkpoints", mesh.WorldGroup(), {}));
//   if (std::optional<int64_t> step = manager->Latest())
//     status = checkpoint::Load(manager->PathOf(*step), state);
//   ...
//   status = manager->Save(step, state);
#ifndef SHARDMESH_CHECKPOINT_MANAGER_H_
#define SHARDMESH_CHECKPOINT_MANAGER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::checkpoint {

struct ManagerOptions {
  /// The latest so many are kept; at least 1.
  int keep_last = 3;
  /// Those whose step is a multiple of it are kept as well; 0: none.
  int64_t keep_every = 0;
  /// Save in the background (AsyncSaver): a checkpoint is there after the next Save or Wait.
  bool async = false;
  bool sync = true;             ///< SaveOptions::sync.
  FileSystem* files = nullptr;  ///< SaveOptions::files.
};

/// Belongs to a rank; its methods are collective over the ranks of Open unless they say otherwise.
/// While it lives no other process (or manager) can open the directory: a file ".lock" in it is
/// locked, and says whose it is.
class CheckpointManager {
 public:
  /// Makes the directory if its parent exists, and removes what saves that were killed have left.
  /// Errors: the same on all ranks: kFailedPrecondition naming the owner if another process has it;
  ///         kInvalidArgument for options out of range; the system's.
  static absl::StatusOr<std::unique_ptr<CheckpointManager>> Open(const std::string& directory,
                                                                 Communicator& ranks,
                                                                 const ManagerOptions& options);
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// "directory/step-100". Local.
  std::string PathOf(int64_t step) const;
  /// The steps of the checkpoints that are whole: whose index and files are there, in full length.
  /// Ascending; the same on all ranks.
  std::vector<int64_t> Steps();
  /// The largest of Steps(); null if there is none.
  std::optional<int64_t> Latest();

  /// Saves as PathOf(step), then removes those that the options do not keep: never the only one
  /// that is whole. Errors: as checkpoint::Save (with `async` those of the save before);
  /// kInvalidArgument for a negative step.
  absl::Status Save(int64_t step, const StateDict& state);
  /// With `async`: finishes the save in flight. Errors: as checkpoint::Save.
  absl::Status Wait();
  /// With `async`: seconds for which the last Save kept the caller. Local.
  double stall_seconds() const { return saver_.stall_seconds(); }

 private:
  CheckpointManager(std::string directory, Communicator& ranks, const ManagerOptions& options);
  absl::Status Lock();
  absl::Status RemoveOld();

  std::string directory_;
  Communicator& ranks_;
  ManagerOptions options_;
  FileSystem& files_;
  AsyncSaver saver_;
  int lock_ = -1;  // The first rank's descriptor.
};

}  // namespace shardmesh::checkpoint

#endif  // SHARDMESH_CHECKPOINT_MANAGER_H_
