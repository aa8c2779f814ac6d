// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/safetensors_file.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/box_reader.h"
#include "shardmesh/checkpoint/internal/input_file.h"

namespace shardmesh {
namespace {

using internal::BoxReader;
using internal::InputFile;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr int64_t kLengthBytes = 8;

absl::Status Annotate(const absl::Status& status, const std::string& where) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

// The length of the header, which the first 8 bytes of the file hold.
absl::StatusOr<int64_t> ReadHeaderLength(const InputFile::Reader& file, int64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a safetensors file: ", file_bytes, " bytes are too few"));
  }
  char bytes[kLengthBytes];
  SHARDMESH_RETURN_IF_ERROR(file.ReadAt(0, bytes, kLengthBytes));
  uint64_t length;
  std::memcpy(&length, bytes, kLengthBytes);
  if (std::memcmp(bytes, "version ", kLengthBytes) == 0) {
    return absl::InvalidArgumentError(
        "not a safetensors file, but a Git LFS pointer to one: run `git lfs pull`");
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a safetensors file, or corrupt: a header of ", length,
                     " bytes, more than the limit of ", kMaxSafetensorsHeaderBytes));
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("truncated, or not a safetensors file: a header of ", length,
                     " bytes in a file of ", file_bytes));
  }
  return static_cast<int64_t>(length);
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const InputFile& file) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile::Reader reader, file.StartReading());
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t length, ReadHeaderLength(reader, file.size()));
  std::string json(static_cast<size_t>(length), '\0');
  SHARDMESH_RETURN_IF_ERROR(reader.ReadAt(kLengthBytes, json.data(), length));
  return ParseSafetensorsHeader(json, kLengthBytes + length, file.size());
}

absl::Status CheckTarget(const Box& box, const Tensor& out) {
  if (!out) return absl::InvalidArgumentError("`out` is an undefined tensor");
  if (out.device() != Device::Cpu()) {
    return absl::InvalidArgumentError(absl::StrCat("`out` is on ", out.device().ToString(),
                                                   "; files are read into tensors on the CPU"));
  }
  if (out.shape() != box.Extents()) {
    return absl::InvalidArgumentError(absl::StrCat("box ", box.ToString(), " has the shape ",
                                                   box.Extents().ToString(), ", but `out` is ",
                                                   out.ToString()));
  }
  if (!out.IsContiguous()) {
    return absl::InvalidArgumentError(absl::StrCat("`out` is not contiguous: ", out.ToString(),
                                                   " with strides ", out.strides().ToString()));
  }
  if (out.storage()->IsReleased()) {
    return absl::FailedPreconditionError("the storage of `out` is released");
  }
  return absl::OkStatus();
}

absl::Status CheckReadable(const StoredTensor& tensor) {
  if (!tensor.dtype) {
    return absl::UnimplementedError(absl::StrCat("dtype ", tensor.file_dtype, " cannot be read"));
  }
  if (tensor.shape.size() > Dims::kMaxRank) {
    return absl::UnimplementedError(
        absl::StrCat(tensor.shape.size(), " dims cannot be read; the most is ", Dims::kMaxRank));
  }
  return absl::OkStatus();
}

absl::Status CheckDType(DType stored, DType out, const ReadOptions& options) {
  if (stored == out || options.allow_cast) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the stored dtype is ", std::string(Name(stored)),
                                                 ", but `out` has ", std::string(Name(out)),
                                                 "; ReadOptions::allow_cast converts"));
}

absl::Status CheckBox(const Dims& shape, const Box& box) {
  bool fits = box.begin.size() == shape.size() && box.end.size() == shape.size();
  for (int d = 0; fits && d < shape.size(); ++d) {
    fits = 0 <= box.begin[d] && box.begin[d] <= box.end[d] && box.end[d] <= shape[d];
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("box ", box.begin.ToString(), " to ",
                                                 box.end.ToString(), " is not within shape ",
                                                 shape.ToString()));
}

absl::Status ReadStoredBox(const InputFile& file, const StoredTensor& tensor, const Box& box,
                           Tensor& out, const ReadOptions& options) {
  const Dims shape(tensor.shape);
  SHARDMESH_RETURN_IF_ERROR(CheckBox(shape, box));
  SHARDMESH_RETURN_IF_ERROR(CheckTarget(box, out));
  SHARDMESH_RETURN_IF_ERROR(CheckDType(*tensor.dtype, out.dtype(), options));
  if (box.IsEmpty()) {
    out.storage()->BumpVersion();  // As on the ranks that hold elements.
    return absl::OkStatus();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile::Reader open, file.StartReading());
  BoxReader reader(open, tensor.begin, *tensor.dtype, out.dtype(), out.mutable_raw_data());
  const absl::Status status = reader.Read(shape, box);
  // After the read, so that a write during it is noticed, and before `status`: a write also
  // explains an element that cannot be converted.
  SHARDMESH_RETURN_IF_ERROR(open.CheckUnchanged());
  return status;
}

// ---- several boxes ------------------------------------------------------------------------------

// So much is read together at most, with gaps of less than a page.
constexpr int64_t kWindowBytes = 256 * 1024;
constexpr int64_t kPageBytes = 4096;

// A box of the file, which has been checked.
struct CheckedBox {
  const StoredTensor* tensor = nullptr;
  const BoxInMemory* box = nullptr;
  int64_t begin = 0, end = 0;  // From its first byte to its last in the file.
};

// A part of a file that has been read.
class Window final : public internal::ByteSource {
 public:
  absl::Status Fill(const internal::ByteSource& file, int64_t begin, int64_t end) {
    begin_ = begin;
    bytes_.resize(static_cast<size_t>(end - begin));
    return file.ReadAt(begin, bytes_.data(), end - begin);
  }
  absl::Status ReadAt(int64_t offset, void* target, int64_t bytes) const override {
    std::memcpy(target, bytes_.data() + (offset - begin_), static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  int64_t begin_ = 0;
  std::vector<char> bytes_;
};

// From the first byte of the box to behind its last, in the file.
void SetRange(CheckedBox& checked) {
  const StoredTensor& tensor = *checked.tensor;
  const Box& box = checked.box->box;
  int64_t stride = SizeOf(*tensor.dtype), first = 0, last = 0;
  for (int d = box.num_dims() - 1; d >= 0; --d) {
    first += box.begin[d] * stride;
    last += (box.end[d] - 1) * stride;
    stride *= tensor.shape[static_cast<size_t>(d)];
  }
  checked.begin = tensor.begin + first;
  checked.end = tensor.begin + last + SizeOf(*tensor.dtype);
}

absl::Status ReadFrom(const internal::ByteSource& source, const CheckedBox& box) {
  const StoredTensor& tensor = *box.tensor;
  BoxReader reader(source, tensor.begin, *tensor.dtype, box.box->dtype, box.box->data);
  return reader.Read(Dims(tensor.shape), box.box->box);
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path,
                                                      checkpoint::FileSystem* seam) {
  SHARDMESH_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, InputFile::Open(path, seam));
  absl::StatusOr<SafetensorsHeader> header = ReadHeader(*file);
  if (!header.ok()) return Annotate(header.status(), Quoted(path));
  return SafetensorsFile(std::move(file), *std::move(header));
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<const InputFile> file, SafetensorsHeader header)
    : file_(std::move(file)), header_(std::move(header)) {
  index_.reserve(header_.tensors.size());
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

// The keys of index_ view strings inside the vector's buffer, which a move keeps.
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::string& SafetensorsFile::path() const { return file_->path(); }

int64_t SafetensorsFile::bytes_read() const { return file_->bytes_read(); }

std::vector<std::string> SafetensorsFile::Names() const {
  std::vector<std::string> names;
  names.reserve(header_.tensors.size());
  for (const StoredTensor& tensor : header_.tensors) names.push_back(tensor.name);
  return names;
}

const StoredTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_.find(absl::string_view(name.data(), name.size()));
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

absl::Status SafetensorsFile::Read(std::string_view name, Tensor& out,
                                   const ReadOptions& options) const {
  const StoredTensor* tensor = Find(name);
  // A tensor with too many dims for a box fails in ReadBox before the box is used.
  const bool has_box = tensor != nullptr && tensor->shape.size() <= Dims::kMaxRank;
  return ReadBox(name, has_box ? Box::Whole(Dims(tensor->shape)) : Box(), out, options);
}

absl::Status SafetensorsFile::NoTensor(std::string_view name) const {
  return absl::NotFoundError(absl::StrCat(Quoted(path()), ": there is no tensor ", Quoted(name),
                                          " among the ", header_.tensors.size(), " of this file"));
}

absl::Status SafetensorsFile::In(const StoredTensor& tensor, const absl::Status& status) const {
  if (status.ok()) return status;
  return Annotate(status, absl::StrCat(Quoted(path()), ": tensor ", Quoted(tensor.name), " (",
                                       tensor.ToString(), ")"));
}

absl::Status SafetensorsFile::ReadBox(std::string_view name, const Box& box, Tensor& out,
                                      const ReadOptions& options) const {
  const StoredTensor* tensor = Find(name);
  if (tensor == nullptr) return NoTensor(name);
  absl::Status status = CheckReadable(*tensor);
  if (status.ok()) status = ReadStoredBox(*file_, *tensor, box, out, options);
  return In(*tensor, status);
}

absl::Status SafetensorsFile::ReadBoxes(std::span<const BoxInMemory> boxes,
                                        const ReadOptions& options) const {
  std::vector<CheckedBox> checked;
  for (const BoxInMemory& box : boxes) {
    const StoredTensor* const tensor = Find(box.name);
    if (tensor == nullptr) return NoTensor(box.name);
    absl::Status status = CheckReadable(*tensor);
    if (status.ok()) status = CheckBox(Dims(tensor->shape), box.box);
    if (status.ok()) status = CheckDType(*tensor->dtype, box.dtype, options);
    SHARDMESH_RETURN_IF_ERROR(In(*tensor, status));
    if (box.box.IsEmpty()) continue;
    SetRange(checked.emplace_back(CheckedBox{tensor, &box}));
  }
  if (checked.empty()) return absl::OkStatus();
  const StoredTensor& first_tensor = *checked[0].tensor;
  absl::StatusOr<InputFile::Reader> open = file_->StartReading();
  if (!open.ok()) return In(first_tensor, open.status());
  const int64_t max_gap = options.read_gaps ? kPageBytes - 1 : 0;
  Window window;
  absl::Status status;
  size_t i = 0;
  while (status.ok() && i < checked.size()) {
    size_t next = i + 1;
    while (next < checked.size() && checked[next].begin >= checked[next - 1].end &&
           checked[next].begin - checked[next - 1].end <= max_gap &&
           checked[next].end - checked[i].begin <= kWindowBytes) {
      ++next;
    }
    const bool is_together = next - i > 1;
    if (is_together)
      status = In(*checked[i].tensor, window.Fill(*open, checked[i].begin, checked[next - 1].end));
    for (; status.ok() && i < next; ++i) {
      status = In(*checked[i].tensor,
                  is_together ? ReadFrom(window, checked[i]) : ReadFrom(*open, checked[i]));
    }
  }
  // As ReadStoredBox.
  SHARDMESH_RETURN_IF_ERROR(In(first_tensor, open->CheckUnchanged()));
  return status;
}

}  // namespace shardmesh
