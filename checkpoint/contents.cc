// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/contents.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/checkpoint/internal/checksum.h"
#include "shardmesh/checkpoint/internal/strict_json.h"
#include "shardmesh/checkpoint/safetensors_writer.h"

namespace shardmesh::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "shardmesh checkpoint";
constexpr int64_t kVersion = 1;
constexpr const char* kDcpShardingInfo = "DCP_SHARDING_INFO";
// A piece takes some 150 bytes of text.
constexpr int64_t kMaxIndexBytes = int64_t{4} << 30;

std::string Shown(std::string_view name) { return Quoted(name, /*max_chars=*/200); }

// ---- writing JSON -------------------------------------------------------------------------------

std::string NumberText(double value) {
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

// Numbers are texts: exact, also where a reader has doubles alone.
Json ValueToJson(const StateValue& value) {
  struct Visit {
    Json operator()(int64_t v) const { return {{"i64", std::to_string(v)}}; }
    Json operator()(double v) const { return {{"f64", NumberText(v)}}; }
    Json operator()(bool v) const { return {{"bool", v}}; }
    Json operator()(const std::string& v) const { return {{"string", v}}; }
    Json operator()(const StateList& v) const {
      Json items = Json::array();
      for (const StateValue& item : v.items) items.push_back(ValueToJson(item));
      return {{"list", std::move(items)}};
    }
    Json operator()(const Tensor&) const { return {{"array", true}}; }
    Json operator()(const DTensor&) const { return {{"array", true}}; }
    Json operator()(const UnsetTensor&) const { return {{"array", false}}; }
  };
  return std::visit(Visit(), value);
}

template <typename Values>
Json ToArray(const Values& values) {
  Json array = Json::array();
  for (int64_t value : values) array.push_back(value);
  return array;
}

Json PieceToJson(const StoredPiece& piece) {
  Json json = {{"file", piece.file},
               {"begin", ToArray(piece.box.begin)},
               {"end", ToArray(piece.box.end)},
               {"at", piece.begin},
               {"bytes", piece.bytes}};
  if (piece.checksum) json["checksum"] = internal::ChecksumText(*piece.checksum);
  return json;
}

// ---- reading JSON -------------------------------------------------------------------------------

absl::Status Malformed(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": expected ", what));
}

// The member `key` of an object; null if there is none.
const Json* Member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

absl::StatusOr<int64_t> Count(const Json* json, const std::string& where) {
  if (json == nullptr || !json->is_number_unsigned()) return Malformed(where, "a count");
  const auto value = json->get<uint64_t>();
  if (value > static_cast<uint64_t>(INT64_MAX)) return Malformed(where, "a count below 2^63");
  return static_cast<int64_t>(value);
}

absl::StatusOr<std::string> Text(const Json* json, const std::string& where) {
  if (json == nullptr || !json->is_string()) return Malformed(where, "a text");
  return json->get<std::string>();
}

absl::StatusOr<const Json*> Array(const Json* json, const std::string& where) {
  if (json == nullptr || !json->is_array()) return Malformed(where, "a list");
  return json;
}

absl::StatusOr<Dims> DimsOf(const Json* json, const std::string& where) {
  SHARDMESH_ASSIGN_OR_RETURN(const Json* const array, Array(json, where));
  if (array->size() > Dims::kMaxRank)
    return Malformed(where, absl::StrCat("at most ", Dims::kMaxRank, " dims"));
  Dims dims;
  for (const Json& item : *array) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t extent, Count(&item, where));
    dims.push_back(extent);
  }
  return dims;
}

absl::StatusOr<std::optional<uint64_t>> ChecksumOf(const Json* json, const std::string& where) {
  if (json == nullptr) return std::optional<uint64_t>();
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, Text(json, where));
  const std::optional<uint64_t> checksum = internal::ParseChecksum(text);
  if (!checksum) return Malformed(where, "16 hexadecimal digits");
  return checksum;
}

absl::StatusOr<StateValue> ValueOf(const Json* json, const std::string& where) {
  if (json == nullptr || !json->is_object() || json->size() != 1)
    return Malformed(where, "an object of one member");
  const auto member = json->begin();
  const std::string& kind = member.key();
  const Json& value = member.value();
  if (kind == "bool" && value.is_boolean()) return StateValue(value.get<bool>());
  if (kind == "string" && value.is_string()) return StateValue(value.get<std::string>());
  if (kind == "array" && value.is_boolean()) return StateValue(Tensor());
  if (kind == "list" && value.is_array()) {
    StateList list;
    for (const Json& item : value) {
      SHARDMESH_ASSIGN_OR_RETURN(StateValue of_item, ValueOf(&item, where));
      list.items.push_back(std::move(of_item));
    }
    return StateValue(std::move(list));
  }
  if ((kind == "i64" || kind == "f64") && value.is_string()) {
    const auto text = value.get<std::string>();
    const char* const end = text.data() + text.size();
    int64_t integer = 0;
    double number = 0;
    const std::from_chars_result result = kind == "i64" ? std::from_chars(text.data(), end, integer)
                                                        : std::from_chars(text.data(), end, number);
    if (result.ec == std::errc() && result.ptr == end)
      return kind == "i64" ? StateValue(integer) : StateValue(number);
  }
  return Malformed(where, "i64, f64, bool, string, list or array");
}

// Bytes of so many elements; nothing if 64 bits do not hold them.
std::optional<int64_t> BytesOf(const Dims& extents, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (int64_t extent : extents) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::StatusOr<StoredPiece> PieceOf(const Json& json, const StoredArray& array,
                                    const std::vector<StoredFile>& files) {
  const std::string where = absl::StrCat("array ", Shown(array.name), ": piece");
  StoredPiece piece;
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t file, Count(Member(json, "file"), where + ".file"));
  if (file >= static_cast<int64_t>(files.size()))
    return Malformed(where, absl::StrCat("a file below ", files.size(), ", not ", file));
  piece.file = static_cast<int>(file);
  SHARDMESH_ASSIGN_OR_RETURN(piece.box.begin, DimsOf(Member(json, "begin"), where + ".begin"));
  SHARDMESH_ASSIGN_OR_RETURN(piece.box.end, DimsOf(Member(json, "end"), where + ".end"));
  bool fits =
      piece.box.begin.size() == array.shape.size() && piece.box.end.size() == array.shape.size();
  for (int d = 0; fits && d < array.shape.size(); ++d)
    fits = piece.box.begin[d] <= piece.box.end[d] && piece.box.end[d] <= array.shape[d];
  if (!fits) {
    return Malformed(where,
                     absl::StrCat("a box within ", array.shape.ToString(), ", not ",
                                  piece.box.begin.ToString(), " to ", piece.box.end.ToString()));
  }
  SHARDMESH_ASSIGN_OR_RETURN(piece.begin, Count(Member(json, "at"), where + ".at"));
  SHARDMESH_ASSIGN_OR_RETURN(piece.bytes, Count(Member(json, "bytes"), where + ".bytes"));
  const std::optional<int64_t> bytes = BytesOf(piece.box.Extents(), SizeOf(*array.dtype));
  if (bytes != piece.bytes)
    return Malformed(where, absl::StrCat("the bytes of ", array.file_dtype, piece.box.ToString(),
                                         ", not ", piece.bytes));
  const int64_t file_bytes = files[piece.file].bytes;
  if (piece.begin > file_bytes || piece.bytes > file_bytes - piece.begin) {
    return Malformed(where, absl::StrCat("bytes within the ", file_bytes, " of ",
                                         Shown(files[piece.file].name)));
  }
  SHARDMESH_ASSIGN_OR_RETURN(piece.checksum, ChecksumOf(Member(json, "checksum"), where));
  return piece;
}

absl::StatusOr<StoredArray> ArrayOf(const Json& json, const std::vector<StoredFile>& files) {
  StoredArray array;
  SHARDMESH_ASSIGN_OR_RETURN(array.name, Text(Member(json, "name"), "name of an array"));
  const std::string where = absl::StrCat("array ", Shown(array.name));
  if (Member(json, "aliases") != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(const Json* const aliases, Array(Member(json, "aliases"), where));
    for (const Json& alias : *aliases) {
      SHARDMESH_ASSIGN_OR_RETURN(std::string text, Text(&alias, where + ".aliases"));
      array.aliases.push_back(std::move(text));
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(array.file_dtype, Text(Member(json, "dtype"), where + ".dtype"));
  array.dtype = DTypeOfSafetensors(array.file_dtype);
  if (!array.dtype) return Malformed(where + ".dtype", "a dtype, not " + Shown(array.file_dtype));
  SHARDMESH_ASSIGN_OR_RETURN(array.shape, DimsOf(Member(json, "shape"), where + ".shape"));
  if (!BytesOf(array.shape, SizeOf(*array.dtype)))
    return Malformed(where + ".shape", "a size that 64 bits hold, not " + array.shape.ToString());
  if (const Json* layout = Member(json, "layout")) {
    SHARDMESH_ASSIGN_OR_RETURN(array.layout, Text(layout, where + ".layout"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Json* const pieces,
                             Array(Member(json, "pieces"), where + ".pieces"));
  for (const Json& item : *pieces) {
    SHARDMESH_ASSIGN_OR_RETURN(StoredPiece piece, PieceOf(item, array, files));
    array.pieces.push_back(piece);
  }
  return array;
}

absl::StatusOr<StoredFile> FileOf(const Json& json) {
  StoredFile file;
  SHARDMESH_ASSIGN_OR_RETURN(file.name, Text(Member(json, "name"), "name of a file"));
  // A name in the directory, and no way out of it.
  if (file.name.empty() || file.name == "." || file.name == ".." ||
      file.name.find('/') != std::string::npos || file.name.find('\0') != std::string::npos) {
    return Malformed("name of a file", "a name in the directory, not " + Shown(file.name));
  }
  SHARDMESH_ASSIGN_OR_RETURN(file.bytes, Count(Member(json, "bytes"), "bytes of a file"));
  SHARDMESH_ASSIGN_OR_RETURN(file.header_checksum,
                             ChecksumOf(Member(json, "header_checksum"), "header_checksum"));
  return file;
}

class Strictness final : public shardmesh::internal::JsonVisitor {
 public:
  absl::Status OnValue(Path, const shardmesh::internal::JsonValue&) override {
    return absl::OkStatus();
  }
  absl::Status OnEnd(Path) override { return absl::OkStatus(); }
};

}  // namespace

absl::StatusOr<std::string> Contents::ToJson() const {
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["files"] = Json::array();
  for (const StoredFile& file : files) {
    Json entry = {{"name", file.name}, {"bytes", file.bytes}};
    if (file.header_checksum)
      entry["header_checksum"] = internal::ChecksumText(*file.header_checksum);
    json["files"].push_back(std::move(entry));
  }
  json["arrays"] = Json::array();
  for (const StoredArray& array : arrays) {
    Json entry = {{"name", array.name},
                  {"dtype", array.file_dtype},
                  {"shape", ToArray(array.shape)},
                  {"layout", array.layout}};
    if (!array.aliases.empty()) entry["aliases"] = array.aliases;
    entry["pieces"] = Json::array();
    for (const StoredPiece& piece : array.pieces) entry["pieces"].push_back(PieceToJson(piece));
    json["arrays"].push_back(std::move(entry));
  }
  json["values"] = Json::array();
  for (const auto& [name, value] : values)
    json["values"].push_back({{"name", name}, {"value", ValueToJson(value)}});
  try {
    return json.dump();
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("a name or a text of the state is not UTF-8");
  }
}

absl::StatusOr<Contents> Contents::FromJson(std::string_view text) {
  Strictness strictness;
  SHARDMESH_RETURN_IF_ERROR(shardmesh::internal::ParseStrictJson(text, strictness));
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  SHARDMESH_ASSIGN_OR_RETURN(const std::string format, Text(Member(json, "format"), "format"));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t version, Count(Member(json, "version"), "version"));
  if (format != kFormat)
    return Malformed("format", std::string(kFormat) + ", not " + Shown(format));
  if (version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("version ", version, " of the format; this is of ", "version ", kVersion));
  }
  Contents contents;
  SHARDMESH_ASSIGN_OR_RETURN(const Json* const files, Array(Member(json, "files"), "files"));
  for (const Json& item : *files) {
    SHARDMESH_ASSIGN_OR_RETURN(StoredFile file, FileOf(item));
    contents.files.push_back(std::move(file));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Json* const arrays, Array(Member(json, "arrays"), "arrays"));
  for (const Json& item : *arrays) {
    SHARDMESH_ASSIGN_OR_RETURN(StoredArray array, ArrayOf(item, contents.files));
    contents.arrays.push_back(std::move(array));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Json* const values, Array(Member(json, "values"), "values"));
  for (const Json& item : *values) {
    SHARDMESH_ASSIGN_OR_RETURN(std::string name, Text(Member(item, "name"), "name of a value"));
    SHARDMESH_ASSIGN_OR_RETURN(StateValue value, ValueOf(Member(item, "value"), Shown(name)));
    contents.values.emplace_back(std::move(name), std::move(value));
  }
  return contents;
}

// ---- coverage -----------------------------------------------------------------------------------

namespace {

constexpr int64_t kMaxCells = int64_t{1} << 26;

// Where boxes begin or end along one dim; the cells between these are in some boxes whole or not.
// `box_at(i)` is the box of number i, below `count`.
template <typename BoxAt>
std::vector<int64_t> Cuts(const Box& whole, size_t count, const BoxAt& box_at, int dim) {
  std::vector<int64_t> cuts = {whole.begin[dim], whole.end[dim]};
  for (size_t i = 0; i < count; ++i) {
    const Box& box = box_at(i);
    if (box.IsEmpty()) continue;
    cuts.push_back(box.begin[dim]);
    cuts.push_back(box.end[dim]);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

int64_t IndexOf(const std::vector<int64_t>& cuts, int64_t at) {
  return std::lower_bound(cuts.begin(), cuts.end(), at) - cuts.begin();
}

// Calls fn with the row-major index of each cell in [begin, end); stops when it returns false.
template <typename Fn>
bool ForEachCell(const Dims& cells, const Dims& begin, const Dims& end, const Fn& fn) {
  Dims at = begin;
  while (true) {
    int64_t index = 0;
    for (int d = 0; d < cells.size(); ++d) index = index * cells[d] + at[d];
    if (!fn(index)) return false;
    int d = cells.size() - 1;
    while (d >= 0 && ++at[d] == end[d]) {
      at[d] = begin[d];
      --d;
    }
    if (d < 0) return true;
  }
}

template <typename BoxAt>
absl::Status CheckCoverageOf(const Box& whole, size_t count, const BoxAt& box_at) {
  if (whole.IsEmpty()) return absl::OkStatus();
  if (count == 1 && box_at(0) == whole) return absl::OkStatus();
  std::vector<std::vector<int64_t>> cuts;
  Dims cells;
  int64_t num_cells = 1;
  for (int d = 0; d < whole.num_dims(); ++d) {
    cuts.push_back(Cuts(whole, count, box_at, d));
    cells.push_back(static_cast<int64_t>(cuts.back().size()) - 1);
    num_cells *= cells[d];
    if (num_cells > kMaxCells)
      return absl::DataLossError(absl::StrCat("its ", count, " boxes are no grid"));
  }
  std::vector<bool> is_covered(static_cast<size_t>(num_cells));
  for (size_t i = 0; i < count; ++i) {
    const Box& box = box_at(i);
    if (box.IsEmpty()) continue;
    Dims begin, end;
    for (int d = 0; d < whole.num_dims(); ++d) {
      begin.push_back(IndexOf(cuts[d], box.begin[d]));
      end.push_back(IndexOf(cuts[d], box.end[d]));
    }
    const bool is_new = ForEachCell(cells, begin, end, [&](int64_t cell) {
      if (is_covered[cell]) return false;
      is_covered[cell] = true;
      return true;
    });
    if (!is_new)
      return absl::DataLossError(absl::StrCat("box ", box.ToString(), " overlaps another"));
  }
  const auto hole = std::find(is_covered.begin(), is_covered.end(), false);
  if (hole == is_covered.end()) return absl::OkStatus();
  Box box = whole;
  int64_t index = hole - is_covered.begin();
  for (int d = whole.num_dims() - 1; d >= 0; --d) {
    box.begin[d] = cuts[d][index % cells[d]];
    box.end[d] = cuts[d][index % cells[d] + 1];
    index /= cells[d];
  }
  return absl::DataLossError(absl::StrCat("no file has box ", box.ToString()));
}

bool BeginsBefore(const StoredPiece& a, const StoredPiece& b) {
  return std::lexicographical_compare(a.box.begin.begin(), a.box.begin.end(), b.box.begin.begin(),
                                      b.box.begin.end());
}

}  // namespace

absl::Status CheckCoverage(const Dims& shape, const std::vector<StoredPiece>& pieces) {
  return CheckCoverageOf(Box::Whole(shape), pieces.size(),
                         [&](size_t i) -> const Box& { return pieces[i].box; });
}

absl::Status CheckBoxCoverage(const Box& whole, std::span<const Box> boxes) {
  return CheckCoverageOf(whole, boxes.size(), [&](size_t i) -> const Box& { return boxes[i]; });
}

absl::Status Contents::Arrange() {
  std::sort(arrays.begin(), arrays.end(),
            [](const StoredArray& a, const StoredArray& b) { return a.name < b.name; });
  std::sort(values.begin(), values.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::unordered_set<std::string> names;
  for (const StoredArray& array : arrays) {
    std::vector<std::string> own = array.aliases;
    own.push_back(array.name);
    for (const std::string& name : own) {
      if (!names.insert(name).second)
        return absl::InvalidArgumentError(absl::StrCat("array ", Shown(name), " twice"));
    }
  }
  for (const auto& [name, value] : values) {
    if (!names.insert(name).second)
      return absl::InvalidArgumentError(absl::StrCat("value ", Shown(name), " twice"));
  }
  for (StoredArray& array : arrays) {
    // As saved, they are sorted.
    if (!std::is_sorted(array.pieces.begin(), array.pieces.end(), BeginsBefore))
      std::sort(array.pieces.begin(), array.pieces.end(), BeginsBefore);
    array.largest_extents = Dims::Filled(array.shape.size(), 0);
    for (const StoredPiece& piece : array.pieces) {
      for (int d = 0; d < array.shape.size(); ++d)
        array.largest_extents[d] =
            std::max(array.largest_extents[d], piece.box.end[d] - piece.box.begin[d]);
    }
  }
  return absl::OkStatus();
}

absl::Status Contents::Check() {
  SHARDMESH_RETURN_IF_ERROR(Arrange());
  for (const StoredArray& array : arrays) {
    const absl::Status status = CheckCoverage(array.shape, array.pieces);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("array ", Shown(array.name), " ", array.file_dtype,
                                       array.shape.ToString(), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

// ---- opening ------------------------------------------------------------------------------------

namespace {

absl::Status In(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(Quoted(path), ": ", status.message()));
}

absl::Status Check(Contents& contents, const OpenOptions& options) {
  return options.check_coverage ? contents.Check() : contents.Arrange();
}

absl::StatusOr<Contents> OpenIndex(const std::string& path, const OpenOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kMaxIndexBytes));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string_view json, internal::CheckedText(text));
  SHARDMESH_ASSIGN_OR_RETURN(Contents contents, Contents::FromJson(json));
  SHARDMESH_RETURN_IF_ERROR(Check(contents, options));
  return contents;
}

// A tensor of a file, as an array of one piece.
StoredArray WholeArray(const StoredTensor& tensor, int file) {
  StoredArray array;
  array.name = tensor.name;
  array.file_dtype = tensor.file_dtype;
  array.dtype = tensor.dtype;
  if (tensor.shape.size() > Dims::kMaxRank) {
    array.dtype.reset();  // Cannot be read, and is no reason to refuse the others.
    return array;
  }
  array.shape = Dims(tensor.shape);
  array.pieces.push_back({file, Box::Whole(array.shape), tensor.begin, tensor.Bytes(), {}});
  return array;
}

// Moves the boxes of one file to where DCP_SHARDING_INFO says they are.
absl::Status PlaceBoxes(const std::string& info, std::vector<StoredArray>& arrays) {
  Strictness strictness;
  SHARDMESH_RETURN_IF_ERROR(shardmesh::internal::ParseStrictJson(info, strictness));
  const Json json = Json::parse(info, nullptr, /*allow_exceptions=*/false);
  for (StoredArray& array : arrays) {
    if (array.pieces.empty()) continue;
    const std::string where = absl::StrCat(kDcpShardingInfo, " of ", Shown(array.name));
    const Json* const entry = Member(json, array.name.c_str());
    if (entry == nullptr) return Malformed(where, "an entry");
    SHARDMESH_ASSIGN_OR_RETURN(const Dims offsets, DimsOf(Member(*entry, "saved_offsets"), where));
    if (offsets.size() != array.shape.size())
      return Malformed(where, absl::StrCat(array.shape.size(), " offsets"));
    Box& box = array.pieces[0].box;
    for (int d = 0; d < offsets.size(); ++d) {
      if (__builtin_add_overflow(box.begin[d], offsets[d], &box.begin[d]) ||
          __builtin_add_overflow(box.end[d], offsets[d], &box.end[d])) {
        return Malformed(where, "offsets that 64 bits hold");
      }
    }
  }
  return absl::OkStatus();
}

// The pieces of one name become one array.
absl::StatusOr<std::vector<StoredArray>> Joined(std::vector<StoredArray> pieces) {
  std::vector<StoredArray> arrays;
  std::unordered_map<std::string, size_t> index;
  for (StoredArray& piece : pieces) {
    const auto [it, is_new] = index.emplace(piece.name, arrays.size());
    if (is_new) {
      arrays.push_back(std::move(piece));
      continue;
    }
    StoredArray& array = arrays[it->second];
    if (array.file_dtype != piece.file_dtype || array.shape.size() != piece.shape.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("array ", Shown(array.name), " is ", array.file_dtype,
                       array.shape.ToString(), " and ", piece.file_dtype, piece.shape.ToString()));
    }
    array.pieces.insert(array.pieces.end(), piece.pieces.begin(), piece.pieces.end());
  }
  for (StoredArray& array : arrays) {
    for (const StoredPiece& piece : array.pieces) {
      for (int d = 0; d < array.shape.size(); ++d)
        array.shape[d] = std::max(array.shape[d], piece.box.end[d]);
    }
    if (!BytesOf(array.shape, array.dtype ? SizeOf(*array.dtype) : 1))
      return Malformed("array " + Shown(array.name), "a size that 64 bits hold");
  }
  return arrays;
}

// Of files that have all their tensors whole, or all as boxes.
absl::StatusOr<Contents> OpenFiles(const std::vector<SafetensorsFile>& files,
                                   const std::string& directory, const OpenOptions& options) {
  Contents contents;
  std::vector<StoredArray> pieces;
  for (const SafetensorsFile& file : files) {
    std::vector<StoredArray> own;
    for (const StoredTensor& tensor : file.tensors())
      own.push_back(WholeArray(tensor, static_cast<int>(contents.files.size())));
    if (const auto info = file.metadata().find(kDcpShardingInfo); info != file.metadata().end()) {
      const absl::Status status = PlaceBoxes(info->second, own);
      if (!status.ok()) return In(file.path(), status);
    }
    pieces.insert(pieces.end(), own.begin(), own.end());
    const std::filesystem::path relative =
        std::filesystem::path(file.path()).lexically_relative(directory);
    const int64_t end = file.tensors().empty() ? 0 : file.tensors().back().end;
    contents.files.push_back({relative.string(), end, {}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(contents.arrays, Joined(std::move(pieces)));
  SHARDMESH_RETURN_IF_ERROR(Check(contents, options));
  return contents;
}

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool IsPickle(const std::string& name) {
  return absl::EndsWith(name, ".distcp") || absl::EndsWith(name, ".bin") ||
         absl::EndsWith(name, ".pt") || absl::EndsWith(name, ".pth");
}

absl::Status RefusePickle(const std::string& path, const std::string& name) {
  return absl::UnimplementedError(absl::StrCat(
      Quoted(path), ": ", Shown(name),
      " is a pickle, which can run any code when it is read; convert it in Python with "
      "safetensors.torch.save_file(torch.load(..., weights_only=True), ...), or save with "
      "HuggingFaceStorageWriter"));
}

}  // namespace

absl::StatusOr<Contents> Contents::Open(const std::string& path, const OpenOptions& options) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto opened = [&](absl::StatusOr<Contents> contents,
                          const std::string& where) -> absl::StatusOr<Contents> {
    if (!contents.ok()) return In(where, contents.status());
    contents->path = path;
    return contents;
  };
  if (IsPickle(path)) return RefusePickle(path, path);
  std::string directory = fs::path(path).parent_path().string();
  if (fs::is_directory(path, error)) {
    directory = path;
    const std::string index = absl::StrCat(path, "/", kIndexName);
    if (fs::exists(index, error)) return opened(OpenIndex(index, options), index);
    const std::vector<std::string> names = NamesIn(path);
    std::vector<SafetensorsFile> boxes;
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".safetensors")) continue;
      SHARDMESH_ASSIGN_OR_RETURN(SafetensorsFile file,
                                 SafetensorsFile::Open(absl::StrCat(path, "/", name)));
      if (file.metadata().count(kDcpShardingInfo) > 0) boxes.push_back(std::move(file));
    }
    if (!boxes.empty()) return opened(OpenFiles(boxes, directory, options), path);
    const bool has_files = std::any_of(names.begin(), names.end(), [](const std::string& name) {
      return absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".index.json");
    });
    const auto pickle = std::find_if(names.begin(), names.end(), IsPickle);
    if (!has_files && pickle != names.end()) return RefusePickle(path, *pickle);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(path));
  return opened(OpenFiles(reader.files(), directory, options), path);
}

}  // namespace shardmesh::checkpoint
