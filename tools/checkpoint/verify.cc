// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/verify.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/file_system.h"
#include "shardmesh/checkpoint/internal/checksum.h"
#include "shardmesh/checkpoint/internal/listed.h"
#include "shardmesh/checkpoint/internal/piece_files.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/tools/checkpoint/located.h"
#include "shardmesh/tools/checkpoint/printed.h"

namespace shardmesh::checkpoint::tool {
namespace {

constexpr int64_t kMaxIndexBytes = int64_t{4} << 30;  // As Contents::Open.

// The index of a checkpoint whose boxes may not cover its arrays.
absl::StatusOr<Contents> OpenUnchecked(const std::string& directory) {
  SHARDMESH_ASSIGN_OR_RETURN(const RegularFile file,
                             RegularFile::Open(absl::StrCat(directory, "/", kIndexName)));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kMaxIndexBytes));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string_view json, internal::CheckedText(text));
  SHARDMESH_ASSIGN_OR_RETURN(Contents contents, Contents::FromJson(json));
  contents.path = directory;
  return contents;
}

class Verifier {
 public:
  Verifier(Located located, const VerifyOptions& options, Console& console)
      : located_(std::move(located)), options_(options), console_(console) {}

  int64_t Run() {
    absl::StatusOr<Contents> contents = OpenContents(located_);
    if (!contents.ok()) contents = FaultsOfOpening(contents.status());
    if (contents.ok()) CheckContents(*contents);
    console_.out << PrintedName(located_.path) << ": ";
    console_.out << (faults_ == 0 ? "no fault" : PrintedCount(faults_, "fault")) << summary_
                 << "\n";
    return faults_;
  }

 private:
  void Fault(std::string_view message) {
    ++faults_;
    if (progress_ != nullptr) progress_->Clear();
    console_.out << "fault: " << message << "\n";
  }

  // One fault is known; finds all that opening has in view, and goes on where it can.
  absl::StatusOr<Contents> FaultsOfOpening(const absl::Status& known) {
    const int64_t before = faults_;
    absl::StatusOr<Contents> contents = known;
    if (located_.format == Format::kShardmesh) {
      contents = OpenUnchecked(located_.path);
      if (contents.ok()) CheckBoxes(*contents);
    } else {
      CheckEachFile();
    }
    if (faults_ == before) Fault(std::string(known.message()));
    return contents;
  }

  void CheckBoxes(const Contents& contents) {
    for (const StoredArray& array : contents.arrays) {
      const absl::Status status = CheckCoverage(array.shape, array.pieces);
      if (status.ok()) continue;
      Fault(absl::StrCat(Quoted(absl::StrCat(located_.path, "/", kIndexName)), ": tensor ",
                         Quoted(array.name, /*max_chars=*/200), ": ", status.message()));
    }
  }

  // Of a directory without an index of its own.
  void CheckEachFile() {
    const absl::StatusOr<std::vector<std::string>> names = SystemFiles().List(located_.path);
    if (!names.ok()) return;
    for (const std::string& name : *names) {
      if (!absl::EndsWith(name, ".safetensors")) continue;
      const absl::Status status =
          SafetensorsFile::Open(absl::StrCat(located_.path, "/", name)).status();
      if (!status.ok()) Fault(std::string(status.message()));
    }
  }

  void CheckContents(const Contents& contents) {
    Progress progress(console_, options_.progress, "verify", BytesOf(contents));
    progress_ = &progress;
    internal::PieceFiles files(contents);
    std::set<int> unreadable;
    for (size_t f = 0; f < contents.files.size(); ++f) {
      if (!CheckFile(contents, static_cast<int>(f), files)) unreadable.insert(static_cast<int>(f));
    }
    int64_t checked = 0, with_checksum = 0;
    for (const StoredArray& array : contents.arrays) {
      for (const StoredPiece& piece : array.pieces) {
        if (unreadable.count(piece.file) > 0) continue;
        const absl::Status status = files.Verify(array, piece);
        if (!status.ok()) Fault(std::string(status.message()));
        ++checked;
        if (piece.checksum) ++with_checksum;
        progress.Add(piece.bytes);
      }
    }
    progress_ = nullptr;
    summary_ =
        absl::StrCat(" in ", PrintedCount(static_cast<int64_t>(contents.arrays.size()), "tensor"),
                     ", ", PrintedCount(static_cast<int64_t>(contents.files.size()), "file"), ", ",
                     PrintedBytes(BytesOf(contents)), "; checksums of ", with_checksum, " of ",
                     checked, " pieces");
  }

  // Whether its tensors can be looked for.
  bool CheckFile(const Contents& contents, int file, internal::PieceFiles& files) {
    const std::string path = PathOf(contents, contents.files[file]);
    const absl::Status opened = SafetensorsFile::Open(path).status();
    const absl::Status status = opened.ok() ? files.VerifyHeader(file) : opened;
    if (status.ok()) return true;
    std::vector<std::string> names;
    for (const StoredArray& array : contents.arrays) {
      for (const StoredPiece& piece : array.pieces) {
        if (piece.file == file) names.push_back(PrintedName(array.name));
      }
    }
    std::string message(status.message());
    if (!opened.ok() && !names.empty())
      absl::StrAppend(&message, "; tensors in it", shardmesh::internal::Listed(names));
    Fault(message);
    return opened.ok();
  }

  Located located_;
  const VerifyOptions& options_;
  Console& console_;
  Progress* progress_ = nullptr;
  int64_t faults_ = 0;
  std::string summary_;
};

}  // namespace

absl::StatusOr<int64_t> VerifyAll(const std::string& path, const VerifyOptions& options,
                                  Console& console) {
  SHARDMESH_ASSIGN_OR_RETURN(Located located, Locate(path, console));
  return Verifier(std::move(located), options, console).Run();
}

}  // namespace shardmesh::checkpoint::tool
