// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/console.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "shardmesh/tools/checkpoint/printed.h"

namespace shardmesh::checkpoint::tool {
namespace {

constexpr absl::Duration kTerminalPeriod = absl::Milliseconds(200);
constexpr absl::Duration kLogPeriod = absl::Seconds(2);

}  // namespace

Progress::Progress(Console& console, bool is_shown, std::string what, int64_t total_bytes)
    : console_(console),
      is_shown_(is_shown || console.is_terminal),
      what_(std::move(what)),
      total_bytes_(total_bytes),
      begin_(absl::Now()),
      next_(begin_ + (console.is_terminal ? kTerminalPeriod : absl::ZeroDuration())) {}

Progress::~Progress() { Clear(); }

void Progress::Add(int64_t bytes) {
  done_bytes_ += bytes;
  if (!is_shown_) return;
  const absl::Time now = absl::Now();
  if (now < next_) return;
  next_ = now + (console_.is_terminal ? kTerminalPeriod : kLogPeriod);
  const double seconds = absl::ToDoubleSeconds(now - begin_);
  const double share = total_bytes_ > 0 ? static_cast<double>(done_bytes_) / total_bytes_ : 1;
  const double per_second = seconds > 0 ? static_cast<double>(done_bytes_) / seconds : 0;
  const std::string line = absl::StrFormat("%s: %.0f %%, %s of %s, %.0f MiB/s", what_, share * 100,
                                           PrintedBytes(done_bytes_), PrintedBytes(total_bytes_),
                                           per_second / (1 << 20));
  // "\x1b[K" clears what a longer line has left.
  console_.err << (console_.is_terminal ? absl::StrCat("\r", line, "\x1b[K") : line + "\n")
               << std::flush;
  has_line_ = console_.is_terminal;
}

void Progress::Clear() {
  if (has_line_) console_.err << "\r\x1b[K" << std::flush;
  has_line_ = false;
}

}  // namespace shardmesh::checkpoint::tool
