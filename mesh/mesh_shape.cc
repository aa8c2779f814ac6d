// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/mesh/mesh_shape.h"

#include <cmath>
#include <limits>
#include <ostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

bool IsAxisName(const std::string& name) {
  if (name.empty()) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_') return false;
  }
  return true;
}

}  // namespace

MeshShape::MeshShape(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  const std::string text = ToString();
  if (num_axes() > kMaxAxes)
    ThrowInvalid("mesh ", text, ": has ", num_axes(), " axes, at most ", kMaxAxes, " fit");
  int64_t ranks = 1;
  for (int i = 0; i < num_axes(); ++i) {
    const MeshAxis& axis = axes_[i];
    if (!IsAxisName(axis.name)) {
      ThrowInvalid("mesh ", text, ": axis name \"", axis.name,
                   "\" is not made of letters, digits and '_'");
    }
    for (int j = 0; j < i; ++j) {
      if (axes_[j].name == axis.name)
        ThrowInvalid("mesh ", text, ": two axes are named \"", axis.name, "\"");
    }
    if (axis.size < 1)
      ThrowInvalid("mesh ", text, ": axis ", axis.name, " has size ", axis.size,
                   ", at least 1 is needed");
    if (!(axis.link.latency_seconds >= 0 && std::isfinite(axis.link.latency_seconds)) ||
        !(axis.link.bytes_per_second > 0)) {
      ThrowInvalid("mesh ", text, ": axis ", axis.name, " has a link of ",
                   axis.link.latency_seconds, " seconds and ", axis.link.bytes_per_second,
                   " bytes per second; a latency of at least 0 and a bandwidth above 0 are needed");
    }
    ranks *= axis.size;
    if (ranks > std::numeric_limits<int>::max()) {
      ThrowInvalid("mesh ", text, ": more than ", std::numeric_limits<int>::max(), " ranks");
    }
  }
}

int64_t MeshShape::NumRanks() const {
  int64_t ranks = 1;
  for (const MeshAxis& axis : axes_) ranks *= axis.size;
  return ranks;
}

bool MeshShape::Has(std::string_view axis) const {
  for (const MeshAxis& own : axes_) {
    if (own.name == axis) return true;
  }
  return false;
}

int MeshShape::Index(std::string_view axis) const {
  for (int i = 0; i < num_axes(); ++i) {
    if (axes_[i].name == axis) return i;
  }
  ThrowInvalid("mesh ", ToString(), " has no axis \"", std::string(axis), "\"");
}

Coord MeshShape::CoordOf(int64_t rank) const {
  if (rank < 0 || rank >= NumRanks()) {
    ThrowInvalid("rank ", rank, " is not in the mesh ", ToString(), " of ", NumRanks(), " ranks");
  }
  Coord coord(axes_.size());
  for (int i = num_axes() - 1; i >= 0; --i) {
    coord[i] = static_cast<int>(rank % axes_[i].size);
    rank /= axes_[i].size;
  }
  return coord;
}

void MeshShape::CheckCoord(std::span<const int> coord) const {
  bool inside = coord.size() == axes_.size();
  for (size_t i = 0; inside && i < coord.size(); ++i)
    inside = coord[i] >= 0 && coord[i] < axes_[i].size;
  if (!inside) {
    ThrowInvalid("coordinate (", absl::StrJoin(coord.begin(), coord.end(), ", "),
                 ") is not in the mesh ", ToString());
  }
}

int64_t MeshShape::RankOf(std::span<const int> coord) const {
  CheckCoord(coord);
  int64_t rank = 0;
  for (size_t i = 0; i < coord.size(); ++i) rank = rank * axes_[i].size + coord[i];
  return rank;
}

std::string MeshShape::ToString() const {
  const auto axis_text = [](std::string* out, const MeshAxis& axis) {
    absl::StrAppend(out, axis.name, "=", axis.size);
    if (axis.link == LinkCost()) return;
    absl::StrAppend(out, " (", axis.link.latency_seconds * 1e6, " us, ",
                    axis.link.bytes_per_second / 1e9, " GB/s)");
  };
  return absl::StrCat("[", absl::StrJoin(axes_, ", ", axis_text), "]");
}

std::ostream& operator<<(std::ostream& out, const MeshShape& shape) {
  return out << shape.ToString();
}

}  // namespace shardmesh
