// SPDX-License-Identifier: Apache-2.0
//
// Shows, checks, compares and converts checkpoints (docs/checkpoints.md, "The tool").
//
//   bazel run //tools/checkpoint -- inspect run/step-100
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/tools/checkpoint/tool.h"

namespace {

// The path as seen from where the user typed the command: `bazel run` starts programs elsewhere.
std::string UserPath(const std::string& path) {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr || path.empty()) return path;
  return (std::filesystem::path(directory) / path).string();
}

// The next file to be opened would get the number of a standard stream that is closed.
void OccupyStandardStreams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) (void)!::open("/dev/null", O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  OccupyStandardStreams();
  // A reader that has gone and a file at its limit are errors of a write, and said in a line.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<std::string_view> arguments(argv + (argc > 0), argv + argc);
  shardmesh::checkpoint::tool::Console console = {std::cout, std::cerr,
                                                  ::isatty(STDERR_FILENO) != 0};
  return shardmesh::checkpoint::tool::RunTool(arguments, console, UserPath);
}
