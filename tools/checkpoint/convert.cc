// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/convert.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/array_stream.h"
#include "shardmesh/checkpoint/internal/checksum.h"
#include "shardmesh/checkpoint/internal/file_writer.h"
#include "shardmesh/checkpoint/internal/new_directory.h"
#include "shardmesh/checkpoint/internal/piece_files.h"
#include "shardmesh/checkpoint/internal/weight_files.h"
#include "shardmesh/checkpoint/safetensors_writer.h"
#include "shardmesh/tensor/execution_context.h"
#include "shardmesh/tools/checkpoint/located.h"
#include "shardmesh/tools/checkpoint/name_filter.h"
#include "shardmesh/tools/checkpoint/printed.h"

namespace shardmesh::checkpoint::tool {
namespace {

namespace fs = std::filesystem;

using internal::ArrayStream;
using internal::WeightFile;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxBytes = int64_t{1} << 60;

// A tensor under its new name.
struct Selected {
  const StoredArray* source;
  std::string name;
  std::vector<std::string> aliases;
  DType dtype;
};

absl::StatusOr<Format> FormatOf(const std::string& text, Format source) {
  if (text.empty()) return source == Format::kShardmesh ? Format::kHuggingFace : Format::kShardmesh;
  if (text == "huggingface") return Format::kHuggingFace;
  if (text == "shardmesh") return Format::kShardmesh;
  return absl::InvalidArgumentError(
      absl::StrCat("--to is ", Quoted(text), "; expected huggingface or shardmesh"));
}

bool IsWithin(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Before anything is read: what is at `to` may be replaced, and is not what is read.
absl::Status CheckTarget(const std::string& from, const std::string& to, bool overwrite,
                         Console& console) {
  std::error_code error;
  const fs::path source = fs::weakly_canonical(from, error);
  const fs::path target = fs::weakly_canonical(to, error);
  if (IsWithin(source, target) || IsWithin(target, source)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(to), " and ", Quoted(from), " are in one another"));
  }
  if (!fs::exists(fs::symlink_status(to, error))) return absl::OkStatus();
  if (!overwrite)
    return absl::AlreadyExistsError(absl::StrCat(Quoted(to), " exists; --overwrite replaces it"));
  // Replacing removes all that is in it.
  const absl::StatusOr<Located> there = Locate(to, console);
  if (fs::is_directory(to, error) && there.ok() && there->path == to) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(to), " is no checkpoint directory; --overwrite replaces nothing else"));
}

class Converter {
 public:
  Converter(const Contents& source, Format format, const std::string& to,
            const ConvertOptions& options, Console& console)
      : source_(source),
        format_(format),
        options_(options),
        console_(console),
        files_(source),
        directory_(to, /*ranks=*/nullptr, options.files != nullptr ? *options.files : SystemFiles(),
                   options.overwrite, options.sync) {}

  absl::Status Run() {
    SHARDMESH_RETURN_IF_ERROR(Select());
    SHARDMESH_RETURN_IF_ERROR(Plan());
    SHARDMESH_RETURN_IF_ERROR(directory_.Begin());
    SHARDMESH_RETURN_IF_ERROR(directory_.End(Write()));
    int64_t bytes = 0;
    for (const WeightFile& file : plan_) bytes += file.plan.file_bytes;
    console_.out << PrintedName(directory_.path()) << ": " << ToString(format_) << ", "
                 << PrintedCount(static_cast<int64_t>(selected_.size()), "tensor") << " in "
                 << PrintedCount(static_cast<int64_t>(plan_.size()), "file") << ", "
                 << PrintedBytes(bytes);
    if (left_out_ > 0)
      console_.out << "; " << PrintedCount(left_out_, "plain value") << " left out";
    console_.out << "\n";
    return absl::OkStatus();
  }

 private:
  // ---- what ------------------------------------------------------------------------------------
  std::string Renamed(const std::string& name) const {
    const bool has_prefix =
        name.compare(0, options_.strip_prefix.size(), options_.strip_prefix) == 0;
    return options_.add_prefix + name.substr(has_prefix ? options_.strip_prefix.size() : 0);
  }

  absl::Status Select() {
    const NameFilter filter(options_.names);
    int64_t bytes = 0;
    for (const StoredArray& array : source_.arrays) {
      std::vector<std::string> names;
      if (filter.Matches(array.name)) names.push_back(Renamed(array.name));
      for (const std::string& alias : array.aliases) {
        if (filter.Matches(alias)) names.push_back(Renamed(alias));
      }
      if (names.empty()) continue;
      if (!array.dtype) {
        return absl::UnimplementedError(absl::StrCat(
            "tensor ", Quoted(array.name, /*max_chars=*/200), " is ", PrintedName(array.file_dtype),
            ", which cannot be converted; leave it out ", "by --names"));
      }
      const DType dtype =
          options_.dtype && IsFloating(*array.dtype) ? *options_.dtype : *array.dtype;
      // A dtype is at most four times as wide as another.
      bytes = SaturatingSum(bytes, BytesOf(array));
      if (bytes > kMaxBytes) return absl::OutOfRangeError("the tensors have more than 2^60 bytes");
      selected_.push_back({&array, names[0], {names.begin() + 1, names.end()}, dtype});
    }
    if (selected_.empty() && !source_.arrays.empty())
      return absl::NotFoundError(absl::StrCat("no tensor matches --names=", options_.names));
    for (const auto& [name, value] : source_.values) {
      if (!filter.Matches(name)) continue;
      if (format_ == Format::kShardmesh) {
        values_.emplace_back(Renamed(name), value);
      } else {
        ++left_out_;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Plan() {
    std::set<std::string> names;  // Over all files.
    for (const Selected& tensor : selected_) {
      if (!names.insert(tensor.name).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("two tensors get the name ", Quoted(tensor.name, /*max_chars=*/200)));
      }
      to_write_.push_back({tensor.name, tensor.dtype, tensor.source->shape});
    }
    if (format_ == Format::kHuggingFace) {
      SHARDMESH_ASSIGN_OR_RETURN(
          plan_, internal::PlanWeightFiles(to_write_, options_.max_file_bytes, {{"format", "pt"}}));
    } else {
      SHARDMESH_RETURN_IF_ERROR(PlanShards());
    }
    if (options_.config.empty()) return absl::OkStatus();
    const absl::StatusOr<RegularFile> file = RegularFile::Open(options_.config);
    absl::StatusOr<std::string> text =
        file.ok() ? file->ReadAll(kMaxConfigBytes) : absl::StatusOr<std::string>(file.status());
    if (!text.ok()) {
      return absl::Status(text.status().code(),
                          absl::StrCat(Quoted(options_.config), ": ", text.status().message()));
    }
    config_ = *std::move(text);
    return absl::OkStatus();
  }

  // As checkpoint::Save writes them, with one piece an array.
  absl::Status PlanShards() {
    index_.values = values_;
    for (const Selected& tensor : selected_) {
      StoredArray array;
      array.name = tensor.name;
      array.aliases = tensor.aliases;
      array.dtype = tensor.dtype;
      array.file_dtype = SafetensorsName(tensor.dtype);
      array.shape = tensor.source->shape;
      index_.arrays.push_back(std::move(array));
    }
    const std::vector<std::vector<size_t>> split =
        internal::SplitIntoFiles(to_write_, options_.max_file_bytes);
    for (size_t f = 0; f < split.size(); ++f) {
      WeightFile file;
      file.name = absl::StrFormat("shard-%05d-of-%05d.safetensors", f + 1, split.size());
      file.tensors = split[f];
      std::vector<TensorToWrite> own;
      nlohmann::json offsets = nlohmann::json::object();
      for (size_t i : file.tensors) {
        own.push_back(to_write_[i]);
        offsets[to_write_[i].name] = {
            {"saved_offsets", std::vector<int64_t>(to_write_[i].shape.size(), 0)}};
      }
      const std::string info =
          offsets.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      SHARDMESH_ASSIGN_OR_RETURN(
          file.plan, PlanSafetensors(own, {{"format", "pt"}, {"DCP_SHARDING_INFO", info}}));
      for (size_t k = 0; k < file.tensors.size(); ++k) {
        StoredArray& array = index_.arrays[file.tensors[k]];
        const Box box = Box::Whole(array.shape);
        array.pieces.push_back({static_cast<int>(f), box, file.plan.begin[k],
                                box.NumElements() * SizeOf(*array.dtype), std::nullopt});
      }
      index_.files.push_back(
          {file.name, file.plan.file_bytes, internal::ChecksumOf(file.plan.header)});
      plan_.push_back(std::move(file));
    }
    Contents checked = index_;  // Check sorts, and the order of index_ is that of selected_.
    SHARDMESH_RETURN_IF_ERROR(checked.Check());
    return checked.ToJson().status();
  }

  // ---- writing ---------------------------------------------------------------------------------
  absl::Status Write() {
    int64_t bytes = 0;
    for (const Selected& tensor : selected_) bytes += BytesOf(*tensor.source);
    Progress progress(console_, options_.progress, "convert", bytes);
    for (const WeightFile& file : plan_) SHARDMESH_RETURN_IF_ERROR(WriteFile(file, progress));
    if (config_) SHARDMESH_RETURN_IF_ERROR(directory_.WriteText("config.json", *config_));
    if (format_ == Format::kHuggingFace) {
      if (plan_.size() == 1) return absl::OkStatus();
      return directory_.WriteText(internal::kWeightsIndex,
                                  internal::WeightsIndex(to_write_, plan_));
    }
    SHARDMESH_RETURN_IF_ERROR(index_.Check());
    SHARDMESH_ASSIGN_OR_RETURN(const std::string json, index_.ToJson());
    return directory_.WriteText(kIndexName, internal::WithChecksum(json));
  }

  absl::Status WriteFile(const WeightFile& file, Progress& progress) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> out,
                               directory_.files().CreateFile(directory_.FilePath(file.name)));
    internal::FileWriter writer(*out, 0);
    SHARDMESH_RETURN_IF_ERROR(
        writer.Add(file.plan.header.data(), static_cast<int64_t>(file.plan.header.size())));
    writer.TakeChecksum();
    std::vector<size_t> order(file.tensors.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(file.plan.begin[a], a) < std::pair(file.plan.begin[b], b);
    });
    for (size_t k : order) {
      const size_t i = file.tensors[k];
      SHARDMESH_RETURN_IF_ERROR(WriteTensor(selected_[i], writer, progress));
      const uint64_t checksum = writer.TakeChecksum();
      if (format_ == Format::kShardmesh) index_.arrays[i].pieces[0].checksum = checksum;
    }
    SHARDMESH_RETURN_IF_ERROR(writer.Flush());
    if (options_.sync) SHARDMESH_RETURN_IF_ERROR(out->Sync());
    return out->Close();
  }

  absl::Status WriteTensor(const Selected& tensor, internal::FileWriter& writer,
                           Progress& progress) {
    if (options_.verify) {
      for (const StoredPiece& piece : tensor.source->pieces) {
        if (piece.checksum) SHARDMESH_RETURN_IF_ERROR(files_.Verify(*tensor.source, piece));
      }
    }
    const int64_t source_bytes = SizeOf(*tensor.source->dtype);
    const int64_t max_elements =
        options_.buffer_bytes / std::max(SizeOf(tensor.dtype), source_bytes);
    ArrayStream stream(context_, files_, *tensor.source, tensor.dtype, max_elements);
    while (true) {
      SHARDMESH_ASSIGN_OR_RETURN(const ArrayStream::Part part, stream.Next());
      if (part.count == 0) return absl::OkStatus();
      SHARDMESH_RETURN_IF_ERROR(writer.Add(part.data, part.count * SizeOf(tensor.dtype)));
      progress.Add(part.count * source_bytes);
    }
  }

  const Contents& source_;
  Format format_;
  const ConvertOptions& options_;
  Console& console_;
  internal::PieceFiles files_;
  internal::NewDirectory directory_;
  ExecutionContext context_;
  std::vector<Selected> selected_;
  std::vector<std::pair<std::string, StateValue>> values_;
  int64_t left_out_ = 0;
  std::vector<TensorToWrite> to_write_;
  std::vector<WeightFile> plan_;
  std::optional<std::string> config_;
  Contents index_;  // Of Shardmesh's format; its arrays are selected_.
};

}  // namespace

absl::Status Convert(const std::string& from, const std::string& to, const ConvertOptions& options,
                     Console& console) {
  const std::string target = WithoutSlashes(to);
  SHARDMESH_ASSIGN_OR_RETURN(const Located located, Locate(from, console));
  SHARDMESH_RETURN_IF_ERROR(CheckTarget(located.path, target, options.overwrite, console));
  SHARDMESH_ASSIGN_OR_RETURN(const Format format, FormatOf(options.to, located.format));
  SHARDMESH_ASSIGN_OR_RETURN(const Contents source, OpenContents(located));
  return Converter(source, format, target, options, console).Run();
}

}  // namespace shardmesh::checkpoint::tool
