// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/new_directory.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/agreement.h"

namespace shardmesh::checkpoint::internal {

NewDirectory::NewDirectory(std::string path, Communicator* ranks, FileSystem& files, bool overwrite,
                           bool sync)
    : path_(std::move(path)), ranks_(ranks), files_(files), overwrite_(overwrite), sync_(sync) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
}

std::string NewDirectory::Parent() const {
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  return parent.empty() ? "." : parent;
}

absl::Status NewDirectory::Check() const {
  if (path_.empty() || path_ == "/")
    return absl::InvalidArgumentError(absl::StrCat("the name of the directory is ", Quoted(path_)));
  if (!is_first_rank() || overwrite_ || !files_.Exists(path_)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(Quoted(path_), " exists (see SaveOptions::overwrite)"));
}

// A name that no other save has, chosen by the first rank.
absl::Status NewDirectory::Begin() {
  SHARDMESH_RETURN_IF_ERROR(Agree(ranks_, Check()));
  absl::Status status;
  std::string name;
  if (is_first_rank()) {
    static std::atomic<int> count = 0;
    name = absl::StrCat(Parent(), "/.", std::filesystem::path(path_).filename().string(), ".tmp-",
                        absl::ToUnixMicros(absl::Now()), "-", ::getpid(), "-", count++);
    status = files_.CreateDirectory(name);
  }
  SHARDMESH_RETURN_IF_ERROR(Agree(ranks_, status));
  temporary_ = GatherTexts(ranks_, name)[0];
  return absl::OkStatus();
}

absl::Status NewDirectory::End(absl::Status filled) {
  if (filled.ok()) filled = Agree(ranks_, is_first_rank() ? Rename() : absl::OkStatus());
  if (!filled.ok() && is_first_rank()) files_.RemoveAll(temporary_).IgnoreError();
  return filled;
}

absl::Status NewDirectory::WriteText(const std::string& name, std::string_view text) const {
  SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file,
                             files_.CreateFile(FilePath(name)));
  SHARDMESH_RETURN_IF_ERROR(file->WriteAt(0, text.data(), static_cast<int64_t>(text.size())));
  if (sync_) SHARDMESH_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status NewDirectory::Rename() {
  if (sync_) SHARDMESH_RETURN_IF_ERROR(files_.SyncDirectory(temporary_));
  if (overwrite_ && files_.Exists(path_)) {
    SHARDMESH_RETURN_IF_ERROR(files_.Exchange(temporary_, path_));
  } else {
    SHARDMESH_RETURN_IF_ERROR(files_.Rename(temporary_, path_));
  }
  // From here on the new one is there; what the temporary name has now is the old one, if any.
  if (sync_) SHARDMESH_RETURN_IF_ERROR(files_.SyncDirectory(Parent()));
  if (files_.Exists(temporary_)) files_.RemoveAll(temporary_).IgnoreError();
  return absl::OkStatus();
}

}  // namespace shardmesh::checkpoint::internal
