// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/piece_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/checksum.h"

namespace shardmesh::checkpoint::internal {
namespace {

constexpr int64_t kBufferBytes = 1 << 20;

absl::Status In(const std::string& path, const std::string& name, const std::string& what) {
  return absl::DataLossError(
      absl::StrCat(Quoted(path), ": tensor ", Quoted(name, /*max_chars=*/200), ": ", what));
}

}  // namespace

std::string PieceFiles::PathOf(int file) const {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path(contents_.path);
  const fs::path directory = fs::is_directory(path, error) ? path : path.parent_path();
  return (directory / contents_.files[file].name).string();
}

absl::StatusOr<const SafetensorsFile*> PieceFiles::FileOf(const StoredArray& array,
                                                          const StoredPiece& piece) {
  OpenFile* open = nullptr;
  {
    const std::lock_guard lock(mutex_);
    open = &open_[piece.file];
  }
  {
    const std::lock_guard lock(open->mutex);
    if (!open->file) {
      SHARDMESH_ASSIGN_OR_RETURN(open->file, SafetensorsFile::Open(PathOf(piece.file), seam_));
    }
  }
  const SafetensorsFile& file = *open->file;
  const StoredTensor* const stored = file.Find(array.name);
  if (stored == nullptr) return In(file.path(), array.name, "is not in this file");
  const Dims extents = piece.box.Extents();
  const bool fits =
      stored->begin == piece.begin && stored->Bytes() == piece.bytes &&
      stored->file_dtype == array.file_dtype &&
      std::equal(stored->shape.begin(), stored->shape.end(), extents.begin(), extents.end());
  if (!fits) {
    return In(
        file.path(), array.name,
        absl::StrCat("is ", stored->ToString(), " at byte ", stored->begin, ", and the index says ",
                     array.file_dtype, extents.ToString(), " at byte ", piece.begin));
  }
  return &file;
}

absl::Status PieceFiles::Read(const StoredArray& array, const StoredPiece& piece, const Box& box,
                              Tensor& out) {
  SHARDMESH_ASSIGN_OR_RETURN(const SafetensorsFile* const file, FileOf(array, piece));
  return file->ReadBox(array.name, Relative(box, piece.box), out, {.allow_cast = true});
}

absl::Status PieceFiles::Verify(const StoredArray& array, const StoredPiece& piece) {
  SHARDMESH_RETURN_IF_ERROR(FileOf(array, piece).status());
  const std::string path = PathOf(piece.file);
  SHARDMESH_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  Checksum checksum;
  std::string buffer(static_cast<size_t>(std::min(kBufferBytes, piece.bytes)), '\0');
  for (int64_t done = 0; done < piece.bytes; done += kBufferBytes) {
    const int64_t bytes = std::min(kBufferBytes, piece.bytes - done);
    absl::Status status;
    if (seam_ != nullptr) status = seam_->BeforeRead(path, piece.begin + done, bytes);
    if (status.ok()) status = file.ReadAt(piece.begin + done, buffer.data(), bytes);
    if (!status.ok()) return In(path, array.name, std::string(status.message()));
    checksum.Add(buffer.data(), static_cast<size_t>(bytes));
  }
  if (!piece.checksum || *piece.checksum == checksum.value()) return absl::OkStatus();
  return In(path, array.name,
            absl::StrCat("box ", piece.box.ToString(), " is damaged: its checksum is ",
                         ChecksumText(checksum.value()), ", and the index says ",
                         ChecksumText(*piece.checksum)));
}

absl::Status PieceFiles::VerifyHeader(int file) {
  const StoredFile& stored = contents_.files[file];
  if (!stored.header_checksum) return absl::OkStatus();
  const std::string path = PathOf(file);
  SHARDMESH_ASSIGN_OR_RETURN(const RegularFile open, RegularFile::Open(path));
  if (open.size() != stored.bytes) {
    return absl::DataLossError(absl::StrCat(Quoted(path), " has ", open.size(),
                                            " bytes, and the index says ", stored.bytes));
  }
  int64_t header_bytes = stored.bytes;
  for (const StoredArray& array : contents_.arrays) {
    for (const StoredPiece& piece : array.pieces) {
      if (piece.file == file) header_bytes = std::min(header_bytes, piece.begin);
    }
  }
  std::string header(static_cast<size_t>(header_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(open.ReadAt(0, header.data(), header_bytes));
  if (ChecksumOf(header) == *stored.header_checksum) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(Quoted(path), ": its header is damaged: its checksum is ",
                                          ChecksumText(ChecksumOf(header)), ", and the index says ",
                                          ChecksumText(*stored.header_checksum)));
}

}  // namespace shardmesh::checkpoint::internal
