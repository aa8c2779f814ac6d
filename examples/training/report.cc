// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/report.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "shardmesh/base/error.h"

namespace shardmesh::examples {
namespace {

constexpr double kMiB = 1 << 20;
constexpr int64_t kMaxRanksInGrid = 64;
constexpr int64_t kKeptLines = 20;

using Rows = std::vector<std::vector<std::string>>;

/// Columns as wide as their widest cell, separated by two blanks; those from `first_right` on are
/// aligned to the right.
std::string Table(const Rows& rows, size_t first_right) {
  std::vector<int> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], static_cast<int>(row[i].size()));
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppendFormat(&line, "  %*s", i < first_right ? -widths[i] : widths[i], row[i]);
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

/// "model.layers.3.mlp" -> "model.layers.*.mlp".
std::string WithoutNumbers(const std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (std::string& part : parts) {
    if (std::all_of(part.begin(), part.end(), absl::ascii_isdigit)) part = "*";
  }
  return absl::StrJoin(parts, ".");
}

std::string ProgressLine(const StepMetrics& m, int64_t total_steps) {
  const int64_t peak = *std::max_element(m.peak_bytes.begin(), m.peak_bytes.end());
  return absl::StrFormat(
      "step %4d/%d  loss %.4f  grad norm %.3f  lr %.2e  %6.0f tokens/s  %.1f MiB per rank",
      m.step + 1, total_steps, m.loss, m.grad_norm, m.lr, m.tokens_per_s, peak / kMiB);
}

/// "forward 60 %, backward 40 %".
std::string DescribeShares(const Breakdown& parts) {
  double total = 0;
  for (const auto& [what, ms] : parts) total += ms;
  return absl::StrJoin(parts, ", ", [total](std::string* out, const auto& part) {
    absl::StrAppendFormat(out, "%s %.0f %%", part.first, 100 * part.second / total);
  });
}

}  // namespace

std::string DescribeMesh(const MeshShape& mesh) {
  std::string text = absl::StrFormat("mesh %s: %d ranks\n", mesh.ToString(), mesh.NumRanks());
  if (mesh.num_axes() == 0 || mesh.NumRanks() > kMaxRanksInGrid) return text;
  const MeshAxis& across = mesh.axes().back();
  const int down_axes = mesh.num_axes() - 1;
  Rows rows = {std::vector<std::string>(down_axes)};
  for (int i = 0; i < across.size; ++i) rows[0].push_back(absl::StrCat(across.name, " ", i));
  for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank) {
    const Coord coord = mesh.CoordOf(rank);
    if (coord.back() == 0) {
      rows.emplace_back();
      for (int axis = 0; axis < down_axes; ++axis) {
        rows.back().push_back(absl::StrCat(mesh.axis(axis).name, " ", coord[axis]));
      }
    }
    rows.back().push_back(absl::StrCat(rank));
  }
  return text + Table(rows, down_axes);
}

std::string DescribeParameters(const nn::Module& model, const Coord& coord) {
  struct Line {
    std::vector<std::string> cells;  // All but the number of parameters.
    int64_t count;
  };
  std::vector<Line> lines;
  for (const nn::Module::NamedParameter& named : model.NamedParameters()) {
    const nn::Parameter& parameter = named.parameter;
    std::vector<std::string> cells = {
        WithoutNumbers(named.name),
        absl::StrCat(std::string(Name(parameter.dtype())), parameter.shape().ToString()),
        parameter.layout().PlacementsToString(), parameter.layout().LocalBox(coord).ToString()};
    const auto same = std::find_if(lines.begin(), lines.end(),
                                   [&](const Line& line) { return line.cells == cells; });
    if (same == lines.end()) {
      lines.push_back({std::move(cells), 1});
    } else {
      ++same->count;
    }
  }
  Rows rows = {{"parameter", "tensor", "layout", "this rank's box", ""}};
  for (Line& line : lines) {
    line.cells.push_back(line.count == 1 ? "" : absl::StrCat("x ", line.count));
    rows.push_back(std::move(line.cells));
  }
  return Table(rows, /*first_right=*/5);
}

std::string DescribeTraffic(const TrafficTotals& traffic) {
  if (traffic.empty()) return "  none\n";
  Rows rows = {{"axis", "kind", "for", "count", "bytes"}};
  CommTrace::Total all;
  for (const auto& [what, total] : traffic) {
    rows.push_back(
        {what.axis, what.kind, what.op, absl::StrCat(total.count), absl::StrCat(total.bytes)});
    all.count += total.count;
    all.bytes += total.bytes;
  }
  rows.push_back({"total", "", "", absl::StrCat(all.count), absl::StrCat(all.bytes)});
  return Table(rows, /*first_right=*/3);
}

std::string DescribeMemory(const std::vector<std::vector<int64_t>>& peaks) {
  Rows rows = {{"rank"}};
  for (size_t rank = 0; rank < peaks.size(); ++rank) rows.push_back({absl::StrCat(rank)});
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    if (std::all_of(peaks.begin(), peaks.end(), [i](const auto& rank) { return rank[i] == 0; })) {
      continue;
    }
    rows[0].emplace_back(Name(static_cast<MemoryCategory>(i)));
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      rows[rank + 1].push_back(absl::StrFormat("%.2f", peaks[rank][i] / kMiB));
    }
  }
  return Table(rows, /*first_right=*/1);
}

std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text) {
    if (c == '\n' || absl::ascii_isprint(static_cast<unsigned char>(c))) {
      printable.push_back(c);
    } else {
      absl::StrAppendFormat(&printable, "\\x%02x", static_cast<unsigned char>(c));
    }
  }
  return printable;
}

void Report::OnStart(Trainer& trainer) {
  const TrainOptions& options = trainer.options();
  const models::LlamaConfig& model = options.model;
  total_steps_ = options.steps;
  int64_t elements = 0;
  for (const nn::Parameter& parameter : trainer.model().Parameters()) {
    elements += parameter.shape().NumElements();
  }
  Write(absl::StrCat(
      DescribeMesh(trainer.mesh().shape()),
      absl::StrFormat("threads per rank: %d\n", trainer.mesh().context().threads()),
      absl::StrFormat(
          "model: %d parameters, %d layers, hidden %d, MLP %d, %d query heads on %d key heads, "
          "vocabulary %d, %s%s\n",
          elements, model.num_hidden_layers, model.hidden_size, model.intermediate_size,
          model.num_attention_heads, model.KeyValueHeads(), model.vocab_size,
          UnparsePrecision(options.precision),
          options.sequence_parallel ? ", sequence parallel" : ""),
      absl::StrFormat("work: %d steps of %d sequences of %d bytes\n", options.steps, options.batch,
                      options.sequence),
      DescribeParameters(trainer.model(), trainer.mesh().coord()), "\n"));
}

bool Report::Keeps(int64_t step) const {
  const int64_t every = std::max<int64_t>(1, total_steps_ / kKeptLines);
  return step == 0 || (step + 1) % every == 0 || step + 1 == total_steps_;
}

void Report::Write(std::string_view text) {
  errno = 0;
  out_ << text << std::flush;
  if (out_) return;
  Throw(absl::StatusCode::kDataLoss,
        "cannot write the report: ", errno == 0 ? "the stream failed" : std::strerror(errno));
}

void Report::AddUp(const StepMetrics& metrics) {
  const auto add = [is_first = steps_ <= 1](const Breakdown& parts, Breakdown& sums) {
    if (is_first) sums.clear();
    sums.resize(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      sums[i] = {parts[i].first, sums[i].second + parts[i].second};
    }
  };
  add(metrics.phases, phases_);
  add(metrics.activities, activities_);
  if (steps_ == 0) first_loss_ = metrics.loss;
  last_losses_[steps_ % kLastLosses] = metrics.loss;
  seconds_ += metrics.step_ms * 1e-3;
  last_ = metrics;
  ++steps_;
}

void Report::OnStep(const StepMetrics& metrics) {
  AddUp(metrics);
  const std::string line = ProgressLine(metrics, total_steps_);
  const bool keeps = Keeps(metrics.step);
  if (is_terminal_) {
    // \r: back to the beginning of the line; ESC [K: erases it.
    Write(absl::StrCat("\r\033[K", line, keeps ? "\n" : ""));
  } else if (keeps) {
    Write(absl::StrCat(line, "\n"));
  }
}

void Report::OnTrained(const std::vector<std::vector<int64_t>>& memory_peaks) {
  if (steps_ == 0) return;
  const size_t losses = std::min(steps_, kLastLosses);
  const double sum = std::accumulate(last_losses_.begin(), last_losses_.begin() + losses, 0.0);
  Write(absl::StrCat(
      is_terminal_ && !Keeps(last_.step) ? "\n" : "",
      absl::StrFormat("\nloss: %.4f at first, %.4f nats per byte in the last %d steps\n",
                      first_loss_, sum / static_cast<double>(losses), losses),
      absl::StrFormat("time: %d steps in %.1f s; rank 0: %s;\n  of that %s\n", steps_, seconds_,
                      DescribeShares(phases_), DescribeShares(activities_)),
      "collectives of rank 0 in the last step:\n", DescribeTraffic(last_.traffic),
      "peak memory in the last step, MiB:\n", DescribeMemory(memory_peaks)));
}

void Report::OnSample(const std::string& text) {
  Write(absl::StrCat("\nthe model writes:\n", Printable(text), "\n"));
}

}  // namespace shardmesh::examples
