// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/testing/failing_files.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace shardmesh::checkpoint::testing {
namespace {

absl::Status Error(Failure failure, const std::string& what) {
  if (failure == Failure::kDeath) ::_exit(kDeathCode);
  return absl::ErrnoToStatus(failure == Failure::kIoError ? EIO : ENOSPC,
                             absl::StrCat("cannot ", what));
}

}  // namespace

class FailingFiles::File final : public OutputFile {
 public:
  File(FailingFiles& files, std::string path, std::unique_ptr<OutputFile> file)
      : files_(files), path_(std::move(path)), file_(std::move(file)) {}

  absl::Status WriteAt(int64_t offset, const void* source, int64_t bytes) override {
    if (!files_.IsNext()) return file_->WriteAt(offset, source, bytes);
    if (files_.failure_ == Failure::kShortWrite || files_.failure_ == Failure::kDeath)
      file_->WriteAt(offset, source, bytes / 2).IgnoreError();
    return Error(files_.failure_, "write to " + path_);
  }
  absl::Status Resize(int64_t bytes) override {
    return files_.IsNext() ? Error(files_.failure_, "resize " + path_) : file_->Resize(bytes);
  }
  absl::Status Sync() override {
    return files_.IsNext() ? Error(files_.failure_, "sync " + path_) : file_->Sync();
  }
  absl::Status Close() override {
    return files_.IsNext() ? Error(files_.failure_, "close " + path_) : file_->Close();
  }

 private:
  FailingFiles& files_;
  std::string path_;
  std::unique_ptr<OutputFile> file_;
};

absl::Status FailingFiles::Next(const std::string& what) {
  return IsNext() ? Error(failure_, what) : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OutputFile>> FailingFiles::CreateFile(const std::string& path) {
  if (const absl::Status status = Next("create " + path); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<OutputFile>> file = SystemFiles().CreateFile(path);
  if (!file.ok()) return file.status();
  return std::make_unique<File>(*this, path, *std::move(file));
}

absl::StatusOr<std::unique_ptr<OutputFile>> FailingFiles::OpenFile(const std::string& path) {
  if (const absl::Status status = Next("open " + path); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<OutputFile>> file = SystemFiles().OpenFile(path);
  if (!file.ok()) return file.status();
  return std::make_unique<File>(*this, path, *std::move(file));
}

absl::Status FailingFiles::CreateDirectory(const std::string& path) {
  const absl::Status status = Next("create " + path);
  return status.ok() ? SystemFiles().CreateDirectory(path) : status;
}

absl::Status FailingFiles::SyncDirectory(const std::string& path) {
  const absl::Status status = Next("sync " + path);
  return status.ok() ? SystemFiles().SyncDirectory(path) : status;
}

absl::Status FailingFiles::Rename(const std::string& from, const std::string& to) {
  const absl::Status status = Next(absl::StrCat("rename ", from, " to ", to));
  return status.ok() ? SystemFiles().Rename(from, to) : status;
}

absl::Status FailingFiles::Exchange(const std::string& a, const std::string& b) {
  const absl::Status status = Next(absl::StrCat("exchange ", a, " and ", b));
  return status.ok() ? SystemFiles().Exchange(a, b) : status;
}

absl::Status FailingFiles::RemoveAll(const std::string& path) {
  const absl::Status status = Next("remove " + path);
  return status.ok() ? SystemFiles().RemoveAll(path) : status;
}

}  // namespace shardmesh::checkpoint::testing
