// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/checkpoint_reader.h"

#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/strict_json.h"

namespace shardmesh {
namespace {

using internal::JsonKind;
using internal::JsonValue;
using internal::JsonVisitor;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = kMaxSafetensorsHeaderBytes;

// File name, relative to the index -> the tensors that the index expects in it.
using FilesOfIndex = std::map<std::string, std::vector<std::string>>;

// An index comes from wherever the weights do; it must not make us read files elsewhere.
bool StaysInside(std::string_view file_name) {
  if (file_name.find('\0') != file_name.npos) return false;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(file_name.data(), file_name.size()), '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

// Collects "weight_map": {tensor: file}.
class IndexVisitor final : public JsonVisitor {
 public:
  absl::Status OnValue(Path path, const JsonValue& value) override {
    if (path.empty() && value.kind != JsonKind::kObject) {
      return absl::InvalidArgumentError("the index should be a JSON object");
    }
    if (path.empty() || path[0] != "weight_map") return absl::OkStatus();
    if (path.size() == 1) {
      if (value.kind != JsonKind::kObject) {
        return absl::InvalidArgumentError("weight_map should be a JSON object");
      }
      has_map_ = true;
      return absl::OkStatus();
    }
    return OnTensor(path[1], value);
  }

  absl::Status OnEnd(Path path) override {
    if (path.empty() && !has_map_) return absl::InvalidArgumentError("no weight_map");
    return absl::OkStatus();
  }

  FilesOfIndex Take() && { return std::move(files_); }

 private:
  absl::Status OnTensor(const std::string& name, const JsonValue& value) {
    if (value.kind != JsonKind::kString) {
      return absl::InvalidArgumentError(absl::StrCat("weight_map: tensor ", Quoted(name),
                                                     " should have the name of a file, but has ",
                                                     std::string(Describe(value.kind))));
    }
    if (!StaysInside(*value.text)) {
      return absl::InvalidArgumentError(absl::StrCat("weight_map: tensor ", Quoted(name),
                                                     ": the file name ", Quoted(*value.text),
                                                     " leads out of the directory of the index"));
    }
    files_[*value.text].push_back(name);
    return absl::OkStatus();
  }

  FilesOfIndex files_;
  bool has_map_ = false;
};

absl::Status Annotate(const absl::Status& status, const std::string& where) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

// Errors do not name the index.
absl::StatusOr<FilesOfIndex> ReadIndex(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string json, file.ReadAll(kMaxIndexBytes));
  IndexVisitor visitor;
  SHARDMESH_RETURN_IF_ERROR(ParseStrictJson(json, visitor));
  return std::move(visitor).Take();
}

absl::StatusOr<std::vector<SafetensorsFile>> OpenFilesOfIndex(const std::string& index_path) {
  const absl::StatusOr<FilesOfIndex> index = ReadIndex(index_path);
  if (!index.ok()) return Annotate(index.status(), Quoted(index_path));
  const size_t slash = index_path.rfind('/');
  const std::string prefix = slash == index_path.npos ? "" : index_path.substr(0, slash + 1);
  std::vector<SafetensorsFile> files;
  for (const auto& [file_name, tensors] : *index) {
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(prefix + file_name);
    if (!file.ok())
      return Annotate(file.status(), absl::StrCat("of the index ", Quoted(index_path)));
    for (const std::string& tensor : tensors) {
      if (file->Find(tensor) != nullptr) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(index_path), ": tensor ", Quoted(tensor), " is not in ",
                       Quoted(file_name), ", although the index says so"));
    }
    files.push_back(*std::move(file));
  }
  return files;
}

absl::StatusOr<std::vector<SafetensorsFile>> OpenOneFile(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<SafetensorsFile> files;
  files.push_back(std::move(file));
  return files;
}

// True also for what exists but cannot be examined: opening it gives the reason.
bool Exists(const std::string& path) {
  struct stat facts;
  return ::stat(path.c_str(), &facts) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

absl::StatusOr<std::vector<SafetensorsFile>> OpenFiles(const std::string& path) {
  struct stat facts;
  const bool is_directory = ::stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
  if (!is_directory) {
    return absl::EndsWith(path, ".index.json") ? OpenFilesOfIndex(path) : OpenOneFile(path);
  }
  const std::string prefix = absl::EndsWith(path, "/") ? path : path + "/";
  if (Exists(prefix + kSingleFile)) return OpenOneFile(prefix + kSingleFile);
  if (Exists(prefix + kIndexFile)) return OpenFilesOfIndex(prefix + kIndexFile);
  return absl::NotFoundError(
      absl::StrCat(Quoted(path), ": the directory has neither ", kSingleFile, " nor ", kIndexFile));
}

}  // namespace

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<SafetensorsFile> files, OpenFiles(path));
  CheckpointReader reader(path, std::move(files));
  SHARDMESH_RETURN_IF_ERROR(reader.IndexNames());
  return reader;
}

CheckpointReader::CheckpointReader(std::string path, std::vector<SafetensorsFile> files)
    : path_(std::move(path)), files_(std::move(files)) {}

absl::Status CheckpointReader::IndexNames() {
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const StoredTensor& tensor : files_[i].tensors()) {
      const auto [entry, is_new] = index_.emplace(tensor.name, i);
      if (is_new) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(path_), ": tensor ", Quoted(tensor.name), " is both in ",
                       Quoted(files_[entry->second].path()), " and in ", Quoted(files_[i].path())));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> CheckpointReader::Names() const {
  std::vector<std::string> names;
  names.reserve(index_.size());
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) names.push_back(tensor.name);
  }
  return names;
}

absl::StatusOr<const SafetensorsFile*> CheckpointReader::FileOf(std::string_view name) const {
  const auto found = index_.find(absl::string_view(name.data(), name.size()));
  if (found != index_.end()) return &files_[found->second];
  return absl::NotFoundError(absl::StrCat(Quoted(path_), ": there is no tensor ", Quoted(name),
                                          " among the ", index_.size(), " of this checkpoint"));
}

const StoredTensor* CheckpointReader::Find(std::string_view name) const {
  const absl::StatusOr<const SafetensorsFile*> file = FileOf(name);
  return file.ok() ? (*file)->Find(name) : nullptr;
}

absl::Status CheckpointReader::Read(std::string_view name, Tensor& out,
                                    const ReadOptions& options) const {
  SHARDMESH_ASSIGN_OR_RETURN(const SafetensorsFile* file, FileOf(name));
  return file->Read(name, out, options);
}

absl::Status CheckpointReader::ReadBox(std::string_view name, const Box& box, Tensor& out,
                                       const ReadOptions& options) const {
  SHARDMESH_ASSIGN_OR_RETURN(const SafetensorsFile* file, FileOf(name));
  return file->ReadBox(name, box, out, options);
}

int64_t CheckpointReader::bytes_read() const {
  int64_t bytes = 0;
  for (const SafetensorsFile& file : files_) bytes += file.bytes_read();
  return bytes;
}

}  // namespace shardmesh
