// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/describe_sharding.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

constexpr int kMaxRanks = 64;

// "[0:3, 0:5]", or "nothing"; of a tensor without dims "[]".
std::string RangesOf(const Box& box) {
  std::vector<std::string> ranges;
  for (int d = 0; d < box.begin.size(); ++d) {
    if (box.begin[d] >= box.end[d]) return "nothing";
    ranges.push_back(absl::StrCat(box.begin[d], ":", box.end[d]));
  }
  return absl::StrCat("[", absl::StrJoin(ranges, ", "), "]");
}

std::string ReductionOf(const Layout& layout) {
  for (const Placement& placement : layout.placements()) {
    if (placement.IsPartial()) return absl::StrCat(" of ", std::string(Name(placement.op())));
  }
  return "";
}

std::string PositionOn(const MeshShape& mesh, int axis, int coordinate) {
  return absl::StrCat(mesh.axis(axis).name, " ", coordinate);
}

std::string PositionOf(const MeshShape& mesh, const Coord& coord) {
  std::vector<std::string> parts;
  for (int axis = 0; axis < mesh.num_axes(); ++axis)
    parts.push_back(PositionOn(mesh, axis, coord[axis]));
  return absl::StrJoin(parts, ", ");
}

// Columns two spaces apart; no spaces at the end of a line.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      absl::StrAppend(&line, i == 0 ? "" : "  ", row[i],
                      std::string(widths[i] - row[i].size(), ' '));
    while (!line.empty() && line.back() == ' ') line.pop_back();
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace

std::string DescribeSharding(const Layout& layout) {
  const MeshShape& mesh = layout.mesh();
  const std::string reduction = ReductionOf(layout);
  const auto held = [&](const Coord& coord) {
    return absl::StrCat(RangesOf(layout.LocalBox(coord)), reduction);
  };
  std::vector<std::vector<std::string>> rows;
  const int64_t ranks = mesh.NumRanks(), shown = std::min<int64_t>(ranks, kMaxRanks);
  if (mesh.num_axes() == 2 && ranks <= kMaxRanks) {
    rows.push_back({""});
    for (int column = 0; column < mesh.size(1); ++column)
      rows[0].push_back(PositionOn(mesh, 1, column));
    for (int row = 0; row < mesh.size(0); ++row) {
      rows.push_back({PositionOn(mesh, 0, row)});
      for (int column = 0; column < mesh.size(1); ++column)
        rows.back().push_back(held(Coord{row, column}));
    }
  } else {
    for (int64_t rank = 0; rank < shown; ++rank) {
      const Coord coord = mesh.CoordOf(rank);
      rows.push_back({PositionOf(mesh, coord), held(coord)});
    }
  }
  const std::string rest =
      ranks > kMaxRanks ? absl::StrCat("and ", ranks - kMaxRanks, " more ranks\n") : "";
  return absl::StrCat(layout.ToString(), "\n", Table(rows), rest);
}

std::string ShardingAsSvg(const Layout& layout) {
  const MeshShape& mesh = layout.mesh();
  const Dims& shape = layout.global_shape();
  const bool fits = (shape.size() == 1 || shape.size() == 2) && shape.NumElements() > 0 &&
                    mesh.num_axes() <= 2 && mesh.NumRanks() <= kMaxRanks;
  if (!fits) {
    ThrowInvalid(
        "sharding as SVG: expected 1 or 2 dims with elements, and a mesh of 1 or 2 axes "
        "with at most ",
        kMaxRanks, " ranks, got ", layout.ToString());
  }
  // The ranks that hold each box; rows, then columns.
  using Rectangle = std::array<int64_t, 4>;
  std::map<Rectangle, std::vector<std::string>> holders;
  for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank) {
    const Coord coord = mesh.CoordOf(rank);
    const Box box = layout.LocalBox(coord);
    if (RangesOf(box) == "nothing") continue;
    const int last = shape.size() - 1;
    const bool is_vector = last == 0;
    holders[{is_vector ? 0 : box.begin[0], is_vector ? 1 : box.end[0], box.begin[last],
             box.end[last]}]
        .push_back(PositionOf(mesh, coord));
  }
  constexpr double kWidth = 640, kHeight = 400, kLine = 16, kMargin = 24;
  const bool is_vector = shape.size() == 1;
  const double across = kWidth / static_cast<double>(shape[shape.size() - 1]);
  const double down = kHeight / static_cast<double>(is_vector ? 1 : shape[0]);
  std::string svg = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", kWidth + 2 * kMargin, "\" height=\"",
      kHeight + 3 * kMargin, "\" font-family=\"monospace\" font-size=\"12\">\n<text x=\"", kMargin,
      "\" y=\"", kMargin, "\">", layout.ToString(), ReductionOf(layout), "</text>\n");
  int hue = 0;
  for (const auto& [box, ranks] : holders) {
    const double x = kMargin + across * static_cast<double>(box[2]);
    const double y = 2 * kMargin + down * static_cast<double>(box[0]);
    absl::StrAppend(&svg, "<rect x=\"", x, "\" y=\"", y, "\" width=\"",
                    across * static_cast<double>(box[3] - box[2]), "\" height=\"",
                    down * static_cast<double>(box[1] - box[0]), "\" fill=\"hsl(", hue,
                    ", 60%, 85%)\" stroke=\"black\"/>\n");
    for (size_t i = 0; i < ranks.size(); ++i) {
      absl::StrAppend(&svg, "<text x=\"", x + 4, "\" y=\"", y + kLine * static_cast<double>(i + 1),
                      "\">", ranks[i], "</text>\n");
    }
    hue = (hue + 137) % 360;  // Neighbours differ.
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace shardmesh
