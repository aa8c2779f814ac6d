// SPDX-License-Identifier: Apache-2.0
//
// Trains a small Llama on the bytes of a text, with FSDP, HSDP and tensor parallelism over any mesh
// of ranks in this process, and lets it write.
//
//   bazel run //examples:train_llama -- --mesh=dp=2,tp=2 --steps=100 --data=book.txt
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/examples/training/byte_text.h"
#include "shardmesh/examples/training/interrupt.h"
#include "shardmesh/examples/training/mesh_flag.h"
#include "shardmesh/examples/training/report.h"
#include "shardmesh/examples/training/run_training.h"
#include "shardmesh/examples/training/step_metrics.h"
#include "shardmesh/examples/training/train_options.h"

using shardmesh::examples::MeshFlag;
using shardmesh::examples::Precision;
using shardmesh::examples::TrainOptions;

ABSL_FLAG(MeshFlag, mesh, MeshFlag{TrainOptions().mesh},
          "axes and their sizes, outermost first: dp_replicate, dp, tp");
ABSL_FLAG(int64_t, steps, TrainOptions().steps, "number of steps");
ABSL_FLAG(int64_t, batch, TrainOptions().batch, "sequences in the global batch");
ABSL_FLAG(int64_t, seq, TrainOptions().sequence, "bytes in a sequence");
ABSL_FLAG(int64_t, hidden, TrainOptions().model.hidden_size, "width of the model");
ABSL_FLAG(int64_t, mlp, TrainOptions().model.intermediate_size, "width of the MLP");
ABSL_FLAG(int64_t, layers, TrainOptions().model.num_hidden_layers, "number of blocks");
ABSL_FLAG(int64_t, heads, TrainOptions().model.num_attention_heads, "query heads");
ABSL_FLAG(int64_t, kv_heads, TrainOptions().model.KeyValueHeads(), "key and value heads");
ABSL_FLAG(double, lr, TrainOptions().optimizer.lr, "peak learning rate");
ABSL_FLAG(int64_t, warmup, TrainOptions().warmup_steps, "steps until the peak learning rate");
ABSL_FLAG(Precision, precision, TrainOptions().precision,
          "f32, bf16 (f32 shards, bf16 compute) or f64");
ABSL_FLAG(bool, sequence_parallel, TrainOptions().sequence_parallel,
          "shard activations over the sequence between attention and MLP, along tp");
ABSL_FLAG(std::string, data, "",
          "text to train on; default: $SHARDMESH_DATA, else the one that bazelw installs");
ABSL_FLAG(uint64_t, seed, TrainOptions().seed, "of initial values, batches and the sample");
ABSL_FLAG(std::string, metrics, "", "file to write one JSON object a step to");
ABSL_FLAG(int64_t, sample, TrainOptions().sample_bytes, "bytes that the trained model writes");
ABSL_FLAG(double, temperature, TrainOptions().temperature,
          "of the sample; 0 takes the likeliest byte");

namespace shardmesh::examples {
namespace {

constexpr int kExitInterrupted = 128 + 2;                          // As the shell reports SIGINT.
constexpr char kInstalledText[] = "/var/cache/shardmesh/kjv.txt";  // Written by bazelw.

TrainOptions OptionsOfFlags() {
  TrainOptions options;
  options.mesh = absl::GetFlag(FLAGS_mesh).shape;
  options.steps = absl::GetFlag(FLAGS_steps);
  options.batch = absl::GetFlag(FLAGS_batch);
  options.sequence = absl::GetFlag(FLAGS_seq);
  options.model.hidden_size = absl::GetFlag(FLAGS_hidden);
  options.model.intermediate_size = absl::GetFlag(FLAGS_mlp);
  options.model.num_hidden_layers = absl::GetFlag(FLAGS_layers);
  options.model.num_attention_heads = absl::GetFlag(FLAGS_heads);
  options.model.num_key_value_heads = absl::GetFlag(FLAGS_kv_heads);
  options.optimizer.lr = absl::GetFlag(FLAGS_lr);
  options.warmup_steps = absl::GetFlag(FLAGS_warmup);
  options.precision = absl::GetFlag(FLAGS_precision);
  options.sequence_parallel = absl::GetFlag(FLAGS_sequence_parallel);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.sample_bytes = absl::GetFlag(FLAGS_sample);
  options.temperature = absl::GetFlag(FLAGS_temperature);
  return options;
}

// The path as seen from where the user typed the command: `bazel run` starts programs elsewhere.
std::string UserPath(const std::string& path) {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr) return path;
  return (std::filesystem::path(directory) / path).string();
}

absl::StatusOr<ByteText> OpenText() {
  if (const std::string path = absl::GetFlag(FLAGS_data); !path.empty()) {
    return ByteText::Open(UserPath(path));
  }
  const char* path = std::getenv("SHARDMESH_DATA");
  if (path != nullptr && *path != '\0') return ByteText::Open(UserPath(path));
  absl::StatusOr<ByteText> text = ByteText::Open(kInstalledText);
  if (text.ok()) return text;
  return absl::NotFoundError(absl::StrCat(
      text.status().message(), "; ./bazelw installs it when run as root, or give --data=FILE"));
}

// Writes the metrics of each step.
class MetricsWriter : public TrainObserver {
 public:
  explicit MetricsWriter(MetricsFile file) : file_(std::move(file)) {}
  void OnStep(const StepMetrics& metrics) override { file_.Append(metrics); }

 private:
  MetricsFile file_;
};

absl::Status Run() {
  const TrainOptions options = OptionsOfFlags();
  SHARDMESH_RETURN_IF_ERROR(options.Validate());
  SHARDMESH_ASSIGN_OR_RETURN(const ByteText text, OpenText());
  SHARDMESH_RETURN_IF_ERROR(text.CheckHolds(options.sequence));

  Report report(std::cout, isatty(STDOUT_FILENO) != 0);
  std::vector<TrainObserver*> observers = {&report};
  std::optional<MetricsWriter> writer;
  if (const std::string path = absl::GetFlag(FLAGS_metrics); !path.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(MetricsFile file, MetricsFile::Create(UserPath(path)));
    observers.push_back(&writer.emplace(std::move(file)));
  }
  WatchInterrupt();
  return RunTraining(options, text, observers);
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains a small Llama on the bytes of a text, sharded over a mesh of ranks in one process.");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    std::cerr << "train_llama: unexpected argument '" << arguments[1] << "'\n";
    return EXIT_FAILURE;
  }
  const absl::Status status = Run();
  if (status.ok()) return EXIT_SUCCESS;
  if (absl::IsCancelled(status)) {
    std::cout << status.message() << std::endl;
    return kExitInterrupted;
  }
  std::cerr << "train_llama: " << status.message() << std::endl;
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace shardmesh::examples

int main(int argc, char** argv) { return shardmesh::examples::Main(argc, argv); }
