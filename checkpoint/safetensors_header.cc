// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "shardmesh/base/dims.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/strict_json.h"

namespace shardmesh {
namespace {

using internal::JsonKind;
using internal::JsonValue;
using internal::JsonVisitor;

struct FileDType {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;
};

constexpr FileDType kFileDTypes[] = {
    {"BOOL", 8, DType::kBool},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, {}},
    {"I8", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kI32},
    {"U32", 32, {}},
    {"F32", 32, DType::kF32},
    {"C64", 64, {}},
    {"F64", 64, DType::kF64},
    {"I64", 64, DType::kI64},
    {"U64", 64, {}},
};

// More dims than any array library supports. Bounds what a header can make us store per tensor.
constexpr size_t kMaxFileRank = 64;

const FileDType* FindFileDType(std::string_view name) {
  for (const FileDType& dtype : kFileDTypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

absl::Status Invalid(std::string_view tensor, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor), ": ", problem));
}

// Of a shape with more dims than a tensor can have, the first ones and the number of all.
std::string ShapeToString(const std::vector<int64_t>& shape) {
  if (shape.size() <= Dims::kMaxRank) return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.begin() + Dims::kMaxRank, ","),
                      ",...] (", shape.size(), " dims)");
}

// The bytes of `shape`, or nothing if the product of the extents overflows, zeros counted as ones
// (strides are products of some of the extents).
std::optional<int64_t> BytesOf(const std::vector<int64_t>& shape, int64_t bits) {
  int64_t product = bits;
  bool is_empty = false;
  for (const int64_t extent : shape) {
    is_empty |= extent == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(extent, 1), &product))
      return std::nullopt;
  }
  return is_empty ? 0 : product / 8;
}

// Collects the tensors of a header while its JSON is parsed.
class HeaderVisitor final : public JsonVisitor {
 public:
  explicit HeaderVisitor(int64_t data_begin) : data_begin_(data_begin) {}

  absl::Status OnValue(Path path, const JsonValue& value) override;
  absl::Status OnEnd(Path path) override;

  SafetensorsHeader Take() && { return std::move(header_); }

 private:
  static bool InMetadata(Path path) { return path[0] == "__metadata__"; }

  absl::Status OnMetadata(Path path, const JsonValue& value);
  absl::Status OnField(Path path, const JsonValue& value);
  absl::Status OnItem(Path path, const JsonValue& value);
  absl::Status FinishTensor();

  int64_t data_begin_;
  SafetensorsHeader header_;
  // The tensor whose object is being parsed.
  StoredTensor tensor_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  std::vector<int64_t> offsets_;
};

absl::Status Expected(std::string_view what, JsonKind wanted, JsonKind found) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " should be ",
                                                 std::string(Describe(wanted)), ", but is ",
                                                 std::string(Describe(found))));
}

absl::Status HeaderVisitor::OnValue(Path path, const JsonValue& value) {
  switch (path.size()) {
    case 0:
      if (value.kind != JsonKind::kObject)
        return Expected("the header", JsonKind::kObject, value.kind);
      return absl::OkStatus();
    case 1:
      if (InMetadata(path) && value.kind == JsonKind::kNull) return absl::OkStatus();
      if (value.kind != JsonKind::kObject) {
        return Expected(Quoted(path[0]), JsonKind::kObject, value.kind);
      }
      if (!InMetadata(path)) {
        tensor_ = StoredTensor();
        tensor_.name = path[0];
        has_dtype_ = has_shape_ = false;
        offsets_.clear();
      }
      return absl::OkStatus();
    case 2:
      return InMetadata(path) ? OnMetadata(path, value) : OnField(path, value);
    case 3:
      return OnItem(path, value);
    default:  // Inside an unknown field: ignored, as in the format's own library.
      return absl::OkStatus();
  }
}

absl::Status HeaderVisitor::OnMetadata(Path path, const JsonValue& value) {
  if (value.kind != JsonKind::kString) {
    return Expected(absl::StrCat("__metadata__ ", Quoted(path[1])), JsonKind::kString, value.kind);
  }
  header_.metadata.emplace(path[1], std::move(*value.text));
  return absl::OkStatus();
}

absl::Status HeaderVisitor::OnField(Path path, const JsonValue& value) {
  const std::string& field = path[1];
  const bool is_array = field == "shape" || field == "data_offsets";
  const JsonKind wanted = is_array ? JsonKind::kArray : JsonKind::kString;
  if (!is_array && field != "dtype") return absl::OkStatus();
  if (value.kind != wanted) {
    return Expected(absl::StrCat("tensor ", Quoted(path[0]), ": ", field), wanted, value.kind);
  }
  if (field == "dtype") {
    tensor_.file_dtype = std::move(*value.text);
    has_dtype_ = true;
  } else if (field == "shape") {
    has_shape_ = true;
  }
  return absl::OkStatus();
}

absl::Status HeaderVisitor::OnItem(Path path, const JsonValue& value) {
  const std::string& field = path[1];
  const bool is_shape = field == "shape";
  if (!is_shape && field != "data_offsets") return absl::OkStatus();
  if (value.kind != JsonKind::kCount) {
    return Expected(absl::StrCat("tensor ", Quoted(path[0]), ": an item of ", field),
                    JsonKind::kCount, value.kind);
  }
  if (value.count > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Invalid(path[0],
                   absl::StrCat(field, " has ", value.count, ", which is beyond 2^63 - 1"));
  }
  std::vector<int64_t>& items = is_shape ? tensor_.shape : offsets_;
  if (is_shape && items.size() >= kMaxFileRank) {
    return Invalid(path[0], absl::StrCat("more than ", kMaxFileRank, " dims"));
  }
  if (!is_shape && items.size() >= 2) return Invalid(path[0], "data_offsets has more than 2 items");
  items.push_back(static_cast<int64_t>(value.count));
  return absl::OkStatus();
}

absl::Status HeaderVisitor::OnEnd(Path path) {
  if (path.size() == 1 && !InMetadata(path)) return FinishTensor();
  return absl::OkStatus();
}

absl::Status HeaderVisitor::FinishTensor() {
  const std::string& name = tensor_.name;
  if (!has_dtype_) return Invalid(name, "no dtype");
  if (!has_shape_) return Invalid(name, "no shape");
  if (offsets_.size() != 2) return Invalid(name, "no data_offsets of 2 items");

  const FileDType* dtype = FindFileDType(tensor_.file_dtype);
  if (dtype == nullptr) {
    return Invalid(name, absl::StrCat("unknown dtype ", Quoted(tensor_.file_dtype)));
  }
  tensor_.dtype = dtype->dtype;
  const std::optional<int64_t> bytes = BytesOf(tensor_.shape, dtype->bits);
  if (!bytes) {
    return Invalid(name, absl::StrCat("shape ", ShapeToString(tensor_.shape), " is too large"));
  }
  if (tensor_.NumElements() % 8 * dtype->bits % 8 != 0) {
    return Invalid(name, absl::StrCat(tensor_.ToString(), " does not end at a whole byte"));
  }
  const int64_t begin = offsets_[0];
  const int64_t end = offsets_[1];
  const std::string range = absl::StrCat("data_offsets [", begin, ",", end, "]");
  if (begin > end) return Invalid(name, absl::StrCat(range, " end before they begin"));
  if (end - begin != *bytes) {
    return Invalid(name, absl::StrCat(range, " hold ", end - begin, " bytes, but ",
                                      tensor_.ToString(), " takes ", *bytes));
  }
  if (__builtin_add_overflow(begin, data_begin_, &tensor_.begin) ||
      __builtin_add_overflow(end, data_begin_, &tensor_.end)) {
    return Invalid(name, absl::StrCat(range, " are too large"));
  }
  header_.tensors.push_back(std::move(tensor_));
  return absl::OkStatus();
}

// The tensors must cover the rest of the file: no overlap, no hole, nothing beyond.
absl::Status CheckRanges(const std::vector<StoredTensor>& tensors, int64_t data_begin,
                         int64_t file_bytes) {
  int64_t position = data_begin;
  std::string_view previous;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.end > file_bytes) {
      return Invalid(tensor.name, absl::StrCat("its bytes end at ", tensor.end,
                                               ", but the file ends at ", file_bytes));
    }
    if (tensor.begin < position) {
      return Invalid(tensor.name,
                     absl::StrCat("its bytes overlap those of tensor ", Quoted(previous)));
    }
    if (tensor.begin > position) {
      return Invalid(tensor.name, absl::StrCat("its bytes begin at ", tensor.begin,
                                               ", which leaves a hole from ", position));
    }
    position = tensor.end;
    previous = tensor.name;
  }
  if (position != file_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at byte ", position, ", but the file ends at ", file_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t StoredTensor::NumElements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

std::string StoredTensor::ToString() const {
  return absl::StrCat(dtype ? std::string(Name(*dtype)) : file_dtype, ShapeToString(shape));
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_begin,
                                                         int64_t file_bytes) {
  if (json.empty() || json[0] != '{') {
    return absl::InvalidArgumentError("the header does not begin with '{'");
  }
  HeaderVisitor visitor(data_begin);
  SHARDMESH_RETURN_IF_ERROR(ParseStrictJson(json, visitor));
  SafetensorsHeader header = std::move(visitor).Take();
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) {
                     return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
                   });
  SHARDMESH_RETURN_IF_ERROR(CheckRanges(header.tensors, data_begin, file_bytes));
  return header;
}

}  // namespace shardmesh
