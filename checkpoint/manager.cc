// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/manager.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/agreement.h"
#include "shardmesh/checkpoint/internal/step_directories.h"

namespace shardmesh::checkpoint {
namespace {

using internal::Agree;
using internal::GatherTexts;
using internal::IsWhole;
using internal::kStepPrefix;
using internal::StepOf;

constexpr const char* kLockName = ".lock";
// What is removed has this name first, so that a part of it is not taken for a checkpoint.
constexpr const char* kRemoving = ".removing-";

std::string HostName() {
  char name[256] = "";
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

}  // namespace

CheckpointManager::CheckpointManager(std::string directory, Communicator& ranks,
                                     const ManagerOptions& options)
    : directory_(std::move(directory)),
      ranks_(ranks),
      options_(options),
      files_(options.files != nullptr ? *options.files : SystemFiles()) {
  while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();
}

CheckpointManager::~CheckpointManager() {
  if (lock_ >= 0) ::close(lock_);
}

absl::StatusOr<std::unique_ptr<CheckpointManager>> CheckpointManager::Open(
    const std::string& directory, Communicator& ranks, const ManagerOptions& options) {
  if (options.keep_last < 1 || options.keep_every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("CheckpointManager: keep_last is ", options.keep_last, " (at least 1) and ",
                     "keep_every ", options.keep_every, " (at least 0)"));
  }
  std::unique_ptr<CheckpointManager> manager(new CheckpointManager(directory, ranks, options));
  SHARDMESH_RETURN_IF_ERROR(Agree(&ranks, ranks.rank() == 0 ? manager->Lock() : absl::OkStatus()));
  return manager;
}

// Of the first rank.
absl::Status CheckpointManager::Lock() {
  if (!files_.Exists(directory_)) SHARDMESH_RETURN_IF_ERROR(files_.CreateDirectory(directory_));
  const std::string path = absl::StrCat(directory_, "/", kLockName);
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", Quoted(path)));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason != EWOULDBLOCK)
      return absl::ErrnoToStatus(reason, absl::StrCat("cannot lock ", Quoted(path)));
    const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
    const absl::StatusOr<std::string> owner =
        file.ok() ? file->ReadAll(1000) : absl::StatusOr<std::string>(file.status());
    return absl::FailedPreconditionError(absl::StrCat(
        Quoted(directory_), " is in use by ", owner.ok() ? Quoted(*owner) : "another process"));
  }
  const std::string owner = absl::StrCat("process ", ::getpid(), " on ", HostName());
  if (::ftruncate(lock_, 0) != 0 ||
      ::pwrite(lock_, owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write to ", Quoted(path)));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(directory_));
  for (const std::string& name : names) {
    const bool is_left = absl::StartsWith(name, kRemoving) ||
                         (absl::StartsWith(name, absl::StrCat(".", std::string(kStepPrefix))) &&
                          absl::StrContains(name, ".tmp-"));
    if (is_left) SHARDMESH_RETURN_IF_ERROR(files_.RemoveAll(absl::StrCat(directory_, "/", name)));
  }
  return absl::OkStatus();
}

std::string CheckpointManager::PathOf(int64_t step) const {
  return absl::StrCat(directory_, "/", std::string(kStepPrefix), step);
}

std::vector<int64_t> CheckpointManager::Steps() {
  std::string text;
  if (ranks_.rank() == 0) {
    const absl::StatusOr<std::vector<std::string>> names = files_.List(directory_);
    if (names.ok()) {
      for (const std::string& name : *names) {
        const std::optional<int64_t> step = StepOf(name);
        if (step && IsWhole(PathOf(*step))) absl::StrAppend(&text, *step, ",");
      }
    }
  }
  const std::string all = GatherTexts(&ranks_, text)[0];
  std::vector<int64_t> steps;
  const char* next = all.data();
  const char* const end = all.data() + all.size();
  while (next < end) {
    next = std::from_chars(next, end, steps.emplace_back()).ptr + 1;  // Past the comma.
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<int64_t> CheckpointManager::Latest() {
  const std::vector<int64_t> steps = Steps();
  return steps.empty() ? std::nullopt : std::optional(steps.back());
}

absl::Status CheckpointManager::Save(int64_t step, const StateDict& state) {
  if (step < 0) return absl::InvalidArgumentError(absl::StrCat("CheckpointManager: step ", step));
  SaveOptions options;
  options.overwrite = true;  // One of this step that is not whole, or of a run that began again.
  options.sync = options_.sync;
  options.ranks = &ranks_;
  options.files = &files_;
  if (options_.async) {
    SHARDMESH_RETURN_IF_ERROR(Wait());
    return saver_.Save(PathOf(step), state, options);
  }
  SHARDMESH_RETURN_IF_ERROR(checkpoint::Save(PathOf(step), state, options));
  return RemoveOld();
}

absl::Status CheckpointManager::Wait() {
  SHARDMESH_RETURN_IF_ERROR(saver_.Wait());
  return options_.async ? RemoveOld() : absl::OkStatus();
}

absl::Status CheckpointManager::RemoveOld() {
  const std::vector<int64_t> steps = Steps();
  absl::Status status;
  if (ranks_.rank() == 0) {
    for (size_t i = 0; i + static_cast<size_t>(options_.keep_last) < steps.size(); ++i) {
      if (options_.keep_every > 0 && steps[i] % options_.keep_every == 0) continue;
      const std::string path = PathOf(steps[i]);
      const std::string removing = absl::StrCat(directory_, "/", kRemoving, steps[i]);
      status.Update(files_.RemoveAll(removing));
      status.Update(files_.Rename(path, removing));
      if (status.ok()) status.Update(files_.RemoveAll(removing));
    }
  }
  return Agree(&ranks_, status);
}

}  // namespace shardmesh::checkpoint
