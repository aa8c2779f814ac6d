// SPDX-License-Identifier: Apache-2.0
//
// A directory that several ranks fill and that appears in one step, whole.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_NEW_DIRECTORY_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_NEW_DIRECTORY_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "shardmesh/checkpoint/file_system.h"
#include "shardmesh/comm/communicator.h"

namespace shardmesh::checkpoint::internal {

/// Under another name beside it until then. Belongs to a rank.
class NewDirectory {
 public:
  /// `ranks` is null for one rank alone.
  NewDirectory(std::string path, Communicator* ranks, FileSystem& files, bool overwrite, bool sync);

  const std::string& path() const { return path_; }
  /// Where its files are until it is whole.
  std::string FilePath(const std::string& name) const { return temporary_ + "/" + name; }
  FileSystem& files() const { return files_; }
  bool is_first_rank() const { return ranks_ == nullptr || ranks_->rank() == 0; }

  /// Local. Errors: kAlreadyExists; kInvalidArgument without a name.
  absl::Status Check() const;
  /// Makes it. Collective. Errors: the same on all ranks.
  absl::Status Begin();
  /// Gives it its name if `filled`, on which all ranks have agreed, is OK; else removes what there
  /// is and returns that. Collective. Errors: the same on all ranks.
  absl::Status End(absl::Status filled);
  /// A file of this content. Local.
  absl::Status WriteText(const std::string& name, std::string_view text) const;

 private:
  absl::Status Rename();
  std::string Parent() const;

  std::string path_;
  Communicator* ranks_;
  FileSystem& files_;
  bool overwrite_, sync_;
  std::string temporary_;
};

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_NEW_DIRECTORY_H_
