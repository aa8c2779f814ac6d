// SPDX-License-Identifier: Apache-2.0
//
// Where a command writes: results, notes, and how far it is.
#ifndef SHARDMESH_TOOLS_CHECKPOINT_CONSOLE_H_
#define SHARDMESH_TOOLS_CHECKPOINT_CONSOLE_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/time/time.h"

namespace shardmesh::checkpoint::tool {

struct Console {
  std::ostream& out;  ///< Results.
  std::ostream& err;  ///< Errors, notes and progress.
  /// Whether `err` is a terminal: progress is shown there, on one line, without being asked for.
  bool is_terminal = false;
};

/// "verify: 37 %, 1.2 GiB of 3.3 GiB, 510 MiB/s" on console.err, now and then. On a terminal the
/// line is written over, and is gone at the end.
class Progress {
 public:
  Progress(Console& console, bool is_shown, std::string what, int64_t total_bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(int64_t bytes);
  /// Before a line of results, which may go to the same terminal.
  void Clear();

 private:
  Console& console_;
  bool is_shown_;
  std::string what_;
  int64_t total_bytes_;
  int64_t done_bytes_ = 0;
  absl::Time begin_;
  absl::Time next_;
  bool has_line_ = false;
};

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_CONSOLE_H_
