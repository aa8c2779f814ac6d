// SPDX-License-Identifier: Apache-2.0
//
// Saves a StateDict from all its ranks: one safetensors file a writing rank and an index.
//
//   StateDict state;
//   state.Merge("model", nn::State(model));
//   state.Merge("optim", optimizer.State());
//   state.Bind("step", &step);
//   absl::Status status = checkpoint::Save("run/step-100", state);
//
// The files: docs/checkpoint_format.md. What holds after a crash: docs/checkpoints.md.
#ifndef SHARDMESH_CHECKPOINT_SAVE_H_
#define SHARDMESH_CHECKPOINT_SAVE_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "shardmesh/checkpoint/file_system.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::checkpoint {

struct SaveOptions {
  /// Replace a checkpoint that is there, in one step, once the new one is whole. Else it is an
  /// error.
  bool overwrite = false;
  /// Wait until all is on the device, so that it survives a loss of power.
  bool sync = true;
  /// The ranks that save together. Default: those of the largest mesh in the state; one rank alone
  /// if there is none. Needed where the tensors are on slices of a mesh.
  Communicator* ranks = nullptr;
  /// Free text for the metadata of each file.
  std::map<std::string, std::string> metadata = {};
  /// Default: SystemFiles().
  FileSystem* files = nullptr;
};

/// Writes `directory`, whose parent exists and which all ranks reach, and returns once it is whole.
/// Until then it is not there (or the old one is): the files are written under another name,
/// ".<name>.tmp-<number>" beside it, and renamed in one step. Each box of a tensor is written once;
/// its replicas share the bytes. Tensors without values (UnsetTensor) are left out. Memory: 1 MiB a
/// rank.
///
/// Collective over the ranks; they pass the same directory, options, names and plain values.
/// Errors: the same on all ranks, naming the first rank that failed: kAlreadyExists;
///         kInvalidArgument naming a tensor that is Partial, not on the CPU or without values, a
///         name that is not UTF-8, or a plain value in which ranks differ; the system's.
///         What was there before is as it was; what has been written is removed if possible.
absl::Status Save(const std::string& directory, const StateDict& state,
                  const SaveOptions& options = {});

/// Saves while the program goes on: the state is copied to buffers at once, and a thread of each
/// rank, which runs no collective, writes them. What is written is the state of that moment. One
/// save at a time. Belongs to a rank; its methods are collective but for is_written().
///
///   checkpoint::AsyncSaver saver;
///   ...
///   status = saver.Save(path, state);     // returns after the copy
///   ...                                   // train on
///   status = saver.Wait();                // now it is there
class AsyncSaver {
 public:
  AsyncSaver();
  /// Waits for the own thread; a save without its Wait() is given up, and not there.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Begins with Wait() for the one before, whose error it returns. Then as checkpoint::Save up to
  /// the copy. Memory: what the rank writes, kept for the next save.
  absl::Status Save(const std::string& directory, const StateDict& state,
                    const SaveOptions& options = {});
  /// Finishes what Save has begun: index, rename. OK if there is nothing. Errors: as
  /// checkpoint::Save.
  absl::Status Wait();
  /// Whether this rank's thread is done, so that Wait() takes only the time of the others. Local.
  bool is_written() const;
  /// Seconds for which the last Save kept the caller, without the wait for the one before. Local.
  double stall_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardmesh::checkpoint

#endif  // SHARDMESH_CHECKPOINT_SAVE_H_
