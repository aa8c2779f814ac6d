// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/train_flags.h"

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/examples/training/mesh_flag.h"

namespace shardmesh::examples {
namespace {

/// A flag and the place of its value.
struct Flag {
  std::string_view name;
  std::variant<bool*, int64_t*, uint64_t*, double*, std::string*, MeshShape*, Precision*, Backend*>
      value;
  std::string_view meaning;

  bool IsBoolean() const { return std::holds_alternative<bool*>(value); }
};

/// In the order of the help.
std::vector<Flag> FlagsOf(TrainFlags& flags) {
  TrainOptions& options = flags.options;
  models::LlamaConfig& model = options.model;
  return {
      {"mesh", &options.mesh, "axes and their sizes, outermost first: dp_replicate, dp, tp"},
      {"backend", &flags.backend,
       "inprocess (ranks are threads), mpi (processes), or auto: processes under mpirun"},
      {"steps", &options.steps, "number of steps"},
      {"batch", &options.batch, "sequences in the global batch"},
      {"seq", &options.sequence, "bytes in a sequence"},
      {"hidden", &model.hidden_size, "width of the model"},
      {"mlp", &model.intermediate_size, "width of the MLP"},
      {"layers", &model.num_hidden_layers, "number of blocks"},
      {"heads", &model.num_attention_heads, "query heads"},
      {"kv_heads", &*model.num_key_value_heads, "key and value heads"},
      {"lr", &options.optimizer.lr, "peak learning rate"},
      {"warmup", &options.warmup_steps, "steps until the peak learning rate"},
      {"precision", &options.precision, "f32, bf16 (f32 shards, bf16 compute) or f64"},
      {"sequence_parallel", &options.sequence_parallel,
       "shard activations over the sequence between attention and MLP, along tp"},
      {"explicit", &options.explicit_moves,
       "refuse every move of data that the model does not ask for"},
      {"data", &flags.data,
       "text to train on; default: $SHARDMESH_DATA, else the one that bazelw installs"},
      {"seed", &options.seed, "of initial values, batches and the sample"},
      {"metrics", &flags.metrics, "file to write one JSON object per step to"},
      {"checkpoint_dir", &flags.checkpoints.directory, "directory of the run's checkpoints"},
      {"checkpoint_every", &flags.checkpoints.every,
       "steps between two checkpoints; 0: only at the end and after a signal"},
      {"keep", &flags.checkpoints.keep, "how many of the latest checkpoints stay"},
      {"resume", &flags.checkpoints.resume,
       "auto (from the latest checkpoint, if any), never, or a checkpoint"},
      {"init_from", &flags.checkpoints.init_from,
       "safetensors file or Hugging Face directory with the weights to begin with"},
      {"export", &flags.checkpoints.export_to,
       "Hugging Face directory that gets the trained model"},
      {"sample", &options.sample_bytes, "bytes that the trained model writes"},
      {"temperature", &options.temperature, "of the sample; 0 takes the likeliest byte"},
      {"help", &flags.help, "show this"},
  };
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status Expected(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", View(what)));
}

absl::Status Parse(std::string_view text, bool& value) {
  return absl::SimpleAtob(View(text), &value) ? absl::OkStatus() : Expected("true or false");
}

absl::Status Parse(std::string_view text, int64_t& value) {
  return absl::SimpleAtoi(View(text), &value) ? absl::OkStatus()
                                              : Expected("an integer below 2^63");
}

absl::Status Parse(std::string_view text, uint64_t& value) {
  return absl::SimpleAtoi(View(text), &value) ? absl::OkStatus()
                                              : Expected("an integer from 0 to 2^64 - 1");
}

absl::Status Parse(std::string_view text, double& value) {
  // A number beyond the range of double is parsed as an infinity.
  const bool is_finite = absl::SimpleAtod(View(text), &value) && std::isfinite(value);
  return is_finite ? absl::OkStatus() : Expected("a finite number");
}

absl::Status Parse(std::string_view text, std::string& value) {
  value = std::string(text);
  return absl::OkStatus();
}

absl::Status Parse(std::string_view text, MeshShape& value) {
  SHARDMESH_ASSIGN_OR_RETURN(value, ParseMesh(text));
  return absl::OkStatus();
}

absl::Status Parse(std::string_view text, Precision& value) {
  SHARDMESH_ASSIGN_OR_RETURN(value, ParsePrecision(text));
  return absl::OkStatus();
}

absl::Status Parse(std::string_view text, Backend& value) {
  SHARDMESH_ASSIGN_OR_RETURN(value, ParseBackend(text));
  return absl::OkStatus();
}

absl::Status Set(const Flag& flag, std::string_view text) {
  const absl::Status status =
      std::visit([text](auto* value) { return Parse(text, *value); }, flag.value);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("--", View(flag.name), " is ", Quoted(text), "; ", status.message()));
}

std::string ToString(const Flag& flag) {
  return std::visit(
      []<typename T>(const T* value) -> std::string {
        if constexpr (std::is_same_v<T, MeshShape>) {
          return UnparseMesh(*value);
        } else if constexpr (std::is_same_v<T, Precision>) {
          return UnparsePrecision(*value);
        } else if constexpr (std::is_same_v<T, Backend>) {
          return std::string(Name(*value));
        } else if constexpr (std::is_same_v<T, bool>) {
          return *value ? "true" : "false";
        } else {
          return absl::StrCat(*value);
        }
      },
      flag.value);
}

/// An argument taken apart.
struct NameAndValue {
  std::string_view name;
  std::string_view value;
  bool has_value;
};

absl::StatusOr<NameAndValue> Split(std::string_view argument) {
  std::string_view rest = argument;
  if (rest.starts_with("-")) rest.remove_prefix(rest.starts_with("--") ? 2 : 1);
  if (rest.empty() || rest.size() == argument.size()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument ", Quoted(argument)));
  }
  const size_t equals = rest.find('=');
  if (equals == rest.npos) return NameAndValue{rest, "", false};
  return NameAndValue{rest.substr(0, equals), rest.substr(equals + 1), true};
}

}  // namespace

absl::StatusOr<TrainFlags> ParseTrainFlags(const std::vector<std::string_view>& arguments) {
  TrainFlags result;
  const std::vector<Flag> flags = FlagsOf(result);
  const auto find = [&flags](std::string_view name) -> const Flag* {
    for (const Flag& flag : flags) {
      if (flag.name == name) return &flag;
    }
    return nullptr;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(NameAndValue given, Split(arguments[i]));
    const Flag* flag = find(given.name);
    if (flag == nullptr && !given.has_value && given.name.starts_with("no")) {
      flag = find(given.name.substr(2));
      if (flag != nullptr && !flag->IsBoolean()) flag = nullptr;
      given = {given.name, "false", true};
    }
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag ", Quoted(arguments[i]), "; --help shows all"));
    }
    if (!given.has_value && flag->IsBoolean()) {
      given.value = "true";
    } else if (!given.has_value) {
      if (++i == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat("--", View(flag->name), " has no value"));
      }
      given.value = arguments[i];
    }
    SHARDMESH_RETURN_IF_ERROR(Set(*flag, given.value));
  }
  return result;
}

std::string TrainFlagsHelp() {
  TrainFlags defaults;
  std::string text;
  for (const Flag& flag : FlagsOf(defaults)) {
    const std::string form = flag.IsBoolean()
                                 ? absl::StrCat("--", View(flag.name))
                                 : absl::StrCat("--", View(flag.name), "=", ToString(flag));
    absl::StrAppendFormat(&text, "  %-22s %s\n", form, View(flag.meaning));
  }
  return text;
}

}  // namespace shardmesh::examples
