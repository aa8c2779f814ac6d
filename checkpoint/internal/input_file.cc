// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/input_file.h"

#include <filesystem>
#include <list>
#include <mutex>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::internal {

/// The files that the process keeps open between reads.
class OpenFiles {
 public:
  static OpenFiles& Instance() {
    static auto* instance = new OpenFiles;  // Never destroyed: files may outlive static objects.
    return *instance;
  }

  /// Null if `file` is not kept open.
  std::shared_ptr<const RegularFile> Find(const InputFile& file) {
    const std::lock_guard lock(mutex_);
    const auto found = positions_.find(&file);
    if (found == positions_.end()) return nullptr;
    files_.splice(files_.begin(), files_, found->second);
    return found->second->open;
  }

  /// Keeps `open` for `file`, in place of the one that was not used for the longest time. Does
  /// nothing if another thread was faster.
  void Add(const InputFile& file, std::shared_ptr<const RegularFile> open) {
    std::shared_ptr<const RegularFile> evicted;  // Closed after the lock is released.
    const std::lock_guard lock(mutex_);
    if (positions_.contains(&file)) return;
    files_.push_front({&file, std::move(open)});
    positions_[&file] = files_.begin();
    if (files_.size() <= kMaxOpenFiles) return;
    evicted = std::move(files_.back().open);
    positions_.erase(files_.back().file);
    files_.pop_back();
  }

  void Remove(const InputFile& file) {
    std::shared_ptr<const RegularFile> removed;
    const std::lock_guard lock(mutex_);
    const auto found = positions_.find(&file);
    if (found == positions_.end()) return;
    removed = std::move(found->second->open);
    files_.erase(found->second);
    positions_.erase(found);
  }

 private:
  struct Entry {
    const InputFile* file;
    std::shared_ptr<const RegularFile> open;
  };

  std::mutex mutex_;
  std::list<Entry> files_;  // The most recently used first.
  absl::flat_hash_map<const InputFile*, std::list<Entry>::iterator> positions_;
};

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path,
                                                           checkpoint::FileSystem* seam) {
  absl::StatusOr<RegularFile> open = RegularFile::Open(path);
  if (!open.ok()) {
    return absl::Status(open.status().code(),
                        absl::StrCat(Quoted(path), ": ", open.status().message()));
  }
  std::error_code failed;
  const std::filesystem::path absolute = std::filesystem::absolute(path, failed);
  std::unique_ptr<InputFile> file(new InputFile(path, failed ? path : absolute.string(), seam));
  file->identity_ = open->identity();
  OpenFiles::Instance().Add(*file, std::make_shared<const RegularFile>(*std::move(open)));
  return file;
}

InputFile::~InputFile() { OpenFiles::Instance().Remove(*this); }

absl::StatusOr<InputFile::Reader> InputFile::StartReading() const {
  if (auto open = OpenFiles::Instance().Find(*this)) return Reader(std::move(open), *this);
  SHARDMESH_ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(absolute_path_));
  if (file.identity() != identity_) {
    return absl::DataLossError(
        absl::StrCat("the file was replaced or written to after it was opened (", identity_.bytes,
                     " bytes then, ", file.size(), " now); open it again"));
  }
  auto open = std::make_shared<const RegularFile>(std::move(file));
  OpenFiles::Instance().Add(*this, open);
  return Reader(std::move(open), *this);
}

absl::Status InputFile::Reader::ReadAt(int64_t offset, void* target, int64_t bytes) const {
  if (file_.seam_ != nullptr)
    SHARDMESH_RETURN_IF_ERROR(file_.seam_->BeforeRead(file_.path_, offset, bytes));
  SHARDMESH_RETURN_IF_ERROR(open_->ReadAt(offset, target, bytes));
  file_.bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status InputFile::Reader::CheckUnchanged() const {
  SHARDMESH_ASSIGN_OR_RETURN(const RegularFile::Identity now, open_->CurrentIdentity());
  if (now == open_->identity()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the file was written to after it was opened (",
                                          open_->size(), " bytes then, ", now.bytes,
                                          " now); open it again"));
}

}  // namespace shardmesh::internal
