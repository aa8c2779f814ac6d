// SPDX-License-Identifier: Apache-2.0
//
// Trains a small Llama on the bytes of a text, with FSDP, HSDP and tensor parallelism over any mesh
// of ranks, threads or processes, and lets it write.
//
//   bazel run //examples:train_llama -- --mesh=dp=2,tp=2 --steps=100 --data=book.txt
//   mpirun -n 4 bazel-bin/examples/train_llama --mesh=dp=2,tp=2     # built with --config=mpi
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/comm/launch.h"
#include "shardmesh/examples/training/byte_text.h"
#include "shardmesh/examples/training/interrupt.h"
#include "shardmesh/examples/training/metrics_file.h"
#include "shardmesh/examples/training/report.h"
#include "shardmesh/examples/training/run_training.h"
#include "shardmesh/examples/training/train_flags.h"

namespace shardmesh::examples {
namespace {

constexpr char kUsage[] =
    "Trains a small Llama on the bytes of a text, sharded over a mesh of ranks: threads of one\n"
    "process, or the processes that mpirun starts.\n"
    "\n"
    "  train_llama [--FLAG=VALUE]...\n"
    "  mpirun -n 4 train_llama --mesh=dp=2,tp=2\n"
    "\n";
constexpr char kExitCodes[] =
    "\n"
    "Exit code: 0 after a whole run; where SIGINT, SIGTERM or SIGHUP ended it between two steps, "
    "0\n"
    "with --checkpoint_dir, which has the state then, else 128 + the signal's number (a second\n"
    "signal ends it at once); 1 after an error, with a line on stderr.\n";
constexpr int kExitSignal = 128;
constexpr char kInstalledText[] = "/var/cache/shardmesh/kjv.txt";  // Written by bazelw.

// The path as seen from where the user typed the command: `bazel run` starts programs elsewhere.
std::string UserPath(const std::string& path) {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr) return path;
  return (std::filesystem::path(directory) / path).string();
}

// The path of the text, or nothing for the installed one.
std::optional<std::string> GivenText(const TrainFlags& flags) {
  if (!flags.data.empty()) return UserPath(flags.data);
  const char* path = std::getenv("SHARDMESH_DATA");
  if (path != nullptr && *path != '\0') return UserPath(path);
  return std::nullopt;
}

absl::StatusOr<ByteText> OpenInstalledText() {
  absl::StatusOr<ByteText> text = ByteText::Open(kInstalledText);
  if (text.ok()) return text;
  return absl::NotFoundError(absl::StrCat(
      text.status().message(), "; ./bazelw installs it when run as root, or give --data=FILE"));
}

// Writes the metrics of each step, once: a run that goes on keeps those before.
class MetricsWriter : public TrainObserver {
 public:
  explicit MetricsWriter(MetricsFile file) : file_(std::move(file)) {}
  void OnStep(const StepMetrics& metrics) override {
    if (is_first_) file_.KeepBefore(metrics.step);
    is_first_ = false;
    file_.Append(metrics);
  }

 private:
  MetricsFile file_;
  bool is_first_ = true;
};

absl::StatusOr<MetricsFile> OpenMetrics(const std::string& path,
                                        const std::optional<std::string>& text_path) {
  std::error_code differ;
  if (text_path && std::filesystem::equivalent(path, *text_path, differ)) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics file ", Quoted(path), " is the data file; it would be overwritten"));
  }
  return MetricsFile::Open(path);
}

// Of several processes the first one prints and writes.
bool SpeaksForAll(const TrainFlags& flags) {
  return flags.backend == Backend::kInprocess || GetLaunchedProcess().rank == 0;
}

absl::Status Run(const TrainFlags& flags) {
  WatchInterrupt();
  SHARDMESH_RETURN_IF_ERROR(flags.options.Validate());
  SHARDMESH_RETURN_IF_ERROR(flags.checkpoints.Validate());
  const std::optional<std::string> path = GivenText(flags);
  SHARDMESH_ASSIGN_OR_RETURN(const ByteText text,
                             path ? ByteText::Open(*path) : OpenInstalledText());
  SHARDMESH_RETURN_IF_ERROR(text.CheckHolds(flags.options.sequence));

  Report report(std::cout, isatty(STDOUT_FILENO) != 0);
  std::vector<TrainObserver*> observers = {&report};
  std::optional<MetricsWriter> writer;
  if (!flags.metrics.empty() && SpeaksForAll(flags)) {
    SHARDMESH_ASSIGN_OR_RETURN(MetricsFile file, OpenMetrics(UserPath(flags.metrics), path));
    observers.push_back(&writer.emplace(std::move(file)));
  }
  CheckpointOptions checkpoints = flags.checkpoints;
  const bool is_path = checkpoints.resume != "auto" && checkpoints.resume != "never";
  for (std::string* given : {&checkpoints.directory, &checkpoints.init_from, &checkpoints.export_to,
                             is_path ? &checkpoints.resume : nullptr}) {
    if (given != nullptr && !given->empty()) *given = UserPath(*given);
  }
  return RunTraining(flags.options, text, observers, checkpoints, flags.backend);
}

int Fail(std::string_view message) {
  std::cerr << "train_llama: " << message << std::endl;
  return EXIT_FAILURE;
}

// Prints `text` and returns `exit_code`, or that of a failure if stdout does not take it.
int Print(std::string_view text, int exit_code) {
  errno = 0;
  std::cout << text << std::flush;
  if (std::cout) return exit_code;
  return Fail(absl::StrCat("cannot write to stdout: ", std::strerror(errno)));
}

// The next file to be opened would get the number of a standard stream that is closed, and what is
// meant for the one would end in the other. Writing to what is opened here fails.
void OccupyStandardStreams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) (void)!::open("/dev/null", O_RDONLY);
  }
}

int Main(const std::vector<std::string_view>& arguments) {
  OccupyStandardStreams();
  // A reader that has gone and a file at its limit are errors of a write, and said in a line.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const absl::StatusOr<TrainFlags> flags = ParseTrainFlags(arguments);
  if (!flags.ok()) return Fail(std::string(flags.status().message()));
  if (flags->help) return Print(absl::StrCat(kUsage, TrainFlagsHelp(), kExitCodes), EXIT_SUCCESS);
  absl::Status status;
  const absl::Status thrown = Catch([&] { status = Run(*flags); });
  status.Update(thrown);
  if (status.ok()) return EXIT_SUCCESS;
  const bool was_interrupted =
      (absl::IsAborted(status) || absl::IsCancelled(status)) && InterruptSignal() != 0;
  // The first process may be what is missing.
  if (!SpeaksForAll(*flags) && !absl::IsUnavailable(status)) {
    return !was_interrupted          ? EXIT_FAILURE
           : absl::IsAborted(status) ? EXIT_SUCCESS
                                     : kExitSignal + InterruptSignal();
  }
  if (absl::IsAborted(status) && InterruptSignal() != 0)
    return Print(absl::StrCat(status.message(), "\n"), EXIT_SUCCESS);
  if (absl::IsCancelled(status) && InterruptSignal() != 0) {
    return Print(absl::StrCat(status.message(), "\n"), kExitSignal + InterruptSignal());
  }
  return Fail(std::string(status.message()));
}

}  // namespace
}  // namespace shardmesh::examples

int main(int argc, char** argv) {
  return shardmesh::examples::Main({argv + (argc > 0), argv + argc});
}
