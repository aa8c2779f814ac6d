// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/inspect.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/checksum.h"
#include "shardmesh/tools/checkpoint/located.h"
#include "shardmesh/tools/checkpoint/name_filter.h"
#include "shardmesh/tools/checkpoint/printed.h"

namespace shardmesh::checkpoint::tool {
namespace {

constexpr size_t kColumns = 6;
using Row = std::array<std::string, kColumns>;

// A line of the table, or one that is not part of its columns.
struct Line {
  Row cells;
  std::string free;
};

// Without the shape, which has a column of its own.
std::string PrintedLayout(const StoredArray& array) {
  const std::string shape = array.shape.ToString() + " ";
  const std::string layout = array.layout.substr(array.layout.find(shape) == 0 ? shape.size() : 0);
  const std::string quoted = Quoted(layout, /*max_chars=*/200);
  return quoted == "'" + layout + "'" ? layout : quoted;
}

Row RowOf(const StoredArray& array) {
  return {PrintedName(array.name),           PrintedName(array.file_dtype), array.shape.ToString(),
          absl::StrCat(array.pieces.size()), absl::StrCat(BytesOf(array)),  PrintedLayout(array)};
}

std::string PieceLine(const Contents& contents, const StoredPiece& piece) {
  const StoredFile& file = contents.files[piece.file];
  std::string line = absl::StrCat("    ", piece.box.ToString(), "  ", PrintedName(file.name),
                                  " at ", piece.begin, ", ", piece.bytes, " bytes");
  if (piece.checksum)
    absl::StrAppend(&line, ", checksum ", internal::ChecksumText(*piece.checksum));
  return line;
}

void PrintTable(const std::vector<Line>& lines, std::ostream& out) {
  std::array<size_t, kColumns> widths = {};
  for (const Line& line : lines) {
    for (size_t c = 0; c < kColumns; ++c) widths[c] = std::max(widths[c], line.cells[c].size());
  }
  for (const Line& line : lines) {
    std::string text = line.free;
    if (text.empty()) {
      for (size_t c = 0; c < kColumns; ++c) {
        const std::string space(widths[c] - line.cells[c].size(), ' ');
        const bool is_number = c == 3 || c == 4;
        absl::StrAppend(&text, c == 0 ? "" : "  ", is_number ? space : "", line.cells[c],
                        is_number ? "" : space);
      }
      text.resize(text.find_last_not_of(' ') + 1);
    }
    out << text << "\n";
  }
}

}  // namespace

absl::Status Inspect(const std::string& path, const InspectOptions& options, Console& console) {
  SHARDMESH_ASSIGN_OR_RETURN(const Located located, Locate(path, console));
  SHARDMESH_ASSIGN_OR_RETURN(const Contents contents, OpenContents(located));
  const NameFilter filter(options.names);
  std::vector<Line> lines = {{{"tensor", "dtype", "shape", "pieces", "bytes", "layout"}, ""}};
  int64_t num_arrays = 0, bytes = 0;
  for (const StoredArray& array : contents.arrays) {
    if (!filter.MatchesAny(array.name, array.aliases)) continue;
    ++num_arrays;
    bytes = SaturatingSum(bytes, BytesOf(array));
    lines.push_back({RowOf(array), ""});
    for (const std::string& alias : array.aliases)
      lines.push_back({{}, absl::StrCat("    = ", PrintedName(alias))});
    if (!options.pieces) continue;
    for (const StoredPiece& piece : array.pieces) lines.push_back({{}, PieceLine(contents, piece)});
  }
  std::vector<std::string> values;
  for (const auto& [name, value] : contents.values) {
    if (filter.Matches(name))
      values.push_back(absl::StrCat(PrintedName(name), " = ", PrintedValue(value)));
  }
  console.out << PrintedName(located.path) << ": " << ToString(located.format) << ", "
              << PrintedCount(static_cast<int64_t>(contents.files.size()), "file") << "\n\n";
  PrintTable(lines, console.out);
  if (!values.empty()) console.out << "\nplain values\n";
  for (const std::string& value : values) console.out << value << "\n";
  console.out << "\ntotal: " << PrintedCount(num_arrays, "tensor") << ", " << PrintedBytes(bytes)
              << ", " << PrintedCount(static_cast<int64_t>(values.size()), "plain value") << "\n";
  return absl::OkStatus();
}

}  // namespace shardmesh::checkpoint::tool
