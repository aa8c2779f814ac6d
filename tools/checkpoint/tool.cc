// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/tool.h"

#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/tools/checkpoint/convert.h"
#include "shardmesh/tools/checkpoint/diff.h"
#include "shardmesh/tools/checkpoint/flags.h"
#include "shardmesh/tools/checkpoint/inspect.h"
#include "shardmesh/tools/checkpoint/verify.h"

namespace shardmesh::checkpoint::tool {
namespace {

constexpr char kUsage[] =
    "Shows, checks, compares and converts checkpoints, in one process and little memory.\n"
    "\n"
    "  checkpoint inspect DIR [--FLAG=VALUE]...\n"
    "  checkpoint verify DIR\n"
    "  checkpoint diff A B\n"
    "  checkpoint convert FROM TO\n"
    "\n"
    "DIR is a checkpoint of Shardmesh (shardmesh.index.json), a directory of a CheckpointManager\n"
    "(its latest whole step is taken), a Hugging Face directory or a safetensors file, or a\n"
    "directory of safetensors boxes that PyTorch's distributed checkpoint has written.\n";
constexpr char kEnd[] =
    "\n"
    "PATTERN: name patterns with commas between them; '*' stands for characters other than a dot,\n"
    "and a pattern for all names below it. Progress is shown on a terminal, or with --progress.\n"
    "\n"
    "Exit code: 0 done, no fault, no difference; 1 verify has found a fault, diff a difference;\n"
    "2 an error, with a line on stderr. Results go to stdout.\n";

using UserPath = std::function<std::string(std::string)>;

// What the flags of all commands set.
struct Options {
  InspectOptions inspect;
  VerifyOptions verify;
  DiffOptions diff;
  ConvertOptions convert;
  bool help = false;
};

struct Command {
  std::string name;
  std::string operands;
  std::string meaning;
  size_t num_paths;
  std::vector<Flag> flags;
};

std::vector<Command> CommandsOf(Options& options) {
  InspectOptions& inspect = options.inspect;
  DiffOptions& diff = options.diff;
  ConvertOptions& convert = options.convert;
  constexpr const char* kNames = "only tensors and values whose name matches";
  constexpr const char* kProgress = "show progress, also if stderr is no terminal";
  return {
      {"inspect",
       "DIR",
       "names, dtypes, shapes, layouts, bytes, plain values",
       1,
       {{"names", &inspect.names, "PATTERN", kNames},
        {"pieces", &inspect.pieces, "", "show each box, its file and checksum"},
        {"help", &options.help, "", "show this"}}},
      {"verify",
       "DIR",
       "files, headers, coverage and checksums; prints each fault",
       1,
       {{"progress", &options.verify.progress, "", kProgress},
        {"help", &options.help, "", "show this"}}},
      {"diff",
       "A B",
       "names, shapes, dtypes, elements and plain values, whatever formats and layouts",
       2,
       {{"rtol", &diff.tolerance.rtol, "NUMBER",
         "elements are equal if |a - b| <= atol + rtol * max(|a|, |b|)"},
        {"atol", &diff.tolerance.atol, "NUMBER", "default of both: 0"},
        {"bits", &diff.tolerance.bits, "",
         "bits must be the same; else two NaNs are equal, and 0 and -0"},
        {"ignore_dtype", &diff.ignore_dtype, "", "another dtype alone is no difference"},
        {"names", &diff.names, "PATTERN", kNames},
        {"strip_prefix", &diff.strip_prefix, "TEXT",
         "taken from names of A's tensors that begin with it"},
        {"all", &diff.all, "", "print equal tensors as well"},
        {"progress", &diff.progress, "", kProgress},
        {"help", &options.help, "", "show this"}}},
      {"convert",
       "FROM TO",
       "to Hugging Face's files, or from these and PyTorch's to a checkpoint",
       2,
       {{"to", &convert.to, "FORMAT", "huggingface or shardmesh; default: what FROM is not"},
        {"dtype", &convert.dtype, "DTYPE",
         "of all floating-point tensors; a finite value that would become infinite is an error"},
        {"names", &convert.names, "PATTERN", kNames},
        {"strip_prefix", &convert.strip_prefix, "TEXT", "taken from names that begin with it"},
        {"add_prefix", &convert.add_prefix, "TEXT", "put before all names, after that"},
        {"max_file_bytes", &convert.max_file_bytes, "COUNT",
         "a file ends before the tensor with which it would be larger; default: 5000000000"},
        {"config", &convert.config, "FILE", "copied to config.json"},
        {"overwrite", &convert.overwrite, "", "replace a checkpoint that is there, in one step"},
        {"verify", &convert.verify, "", "compare FROM's checksums first; --noverify does not"},
        {"progress", &convert.progress, "", kProgress},
        {"help", &options.help, "", "show this"}}},
  };
}

std::string Help(const std::vector<Command>& commands) {
  std::string text = kUsage;
  for (const Command& command : commands) {
    absl::StrAppend(&text, "\n", command.name, " ", command.operands, ": ", command.meaning, "\n",
                    FlagsHelp(command.flags));
  }
  return text + kEnd;
}

absl::StatusOr<ExitCode> Found(const absl::StatusOr<int64_t>& count) {
  if (!count.ok()) return count.status();
  return *count == 0 ? kExitOk : kExitFound;
}

absl::StatusOr<ExitCode> Run(std::span<const std::string_view> arguments, Console& console,
                             const UserPath& user_path) {
  Options options;
  const std::vector<Command> commands = CommandsOf(options);
  const std::string name(arguments.empty() ? "" : arguments[0]);
  if (name == "help" || name == "--help" || name == "-help" || name == "-h") {
    console.out << Help(commands);
    return kExitOk;
  }
  const Command* command = nullptr;
  for (const Command& known : commands) {
    if (known.name == name) command = &known;
  }
  if (command == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected inspect, verify, diff or convert",
        name.empty() ? "" : absl::StrCat(", not ", Quoted(name)), "; --help shows more"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<std::string> paths,
                             ParseFlags(arguments.subspan(1), command->flags));
  if (options.help) {
    console.out << Help(commands);
    return kExitOk;
  }
  if (paths.size() != command->num_paths) {
    return absl::InvalidArgumentError(absl::StrCat(command->name, " takes ", command->operands,
                                                   ", not ", paths.size(), " paths"));
  }
  if (user_path) {
    for (std::string& path : paths) path = user_path(path);
    if (!options.convert.config.empty()) options.convert.config = user_path(options.convert.config);
  }
  if (name == "inspect") {
    SHARDMESH_RETURN_IF_ERROR(Inspect(paths[0], options.inspect, console));
    return kExitOk;
  }
  if (name == "verify") return Found(VerifyAll(paths[0], options.verify, console));
  if (name == "diff") return Found(Diff(paths[0], paths[1], options.diff, console));
  SHARDMESH_RETURN_IF_ERROR(Convert(paths[0], paths[1], options.convert, console));
  return kExitOk;
}

ExitCode Fail(Console& console, const std::string& message) {
  console.err << "checkpoint: " << message << std::endl;
  return kExitError;
}

}  // namespace

ExitCode RunTool(std::span<const std::string_view> arguments, Console& console,
                 const UserPath& user_path) {
  // Of what a hostile file may ask for, memory alone throws.
  try {
    const absl::StatusOr<ExitCode> code = Run(arguments, console, user_path);
    if (!code.ok()) return Fail(console, std::string(code.status().message()));
    errno = 0;
    console.out << std::flush;
    if (console.out) return *code;
    return Fail(console, absl::StrCat("cannot write to stdout: ", std::strerror(errno)));
  } catch (const std::exception& error) {
    return Fail(console, error.what());
  }
}

}  // namespace shardmesh::checkpoint::tool
