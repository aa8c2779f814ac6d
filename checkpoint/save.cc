// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/save.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/agreement.h"
#include "shardmesh/checkpoint/internal/box_runs.h"
#include "shardmesh/checkpoint/internal/checksum.h"
#include "shardmesh/checkpoint/internal/file_writer.h"
#include "shardmesh/checkpoint/internal/new_directory.h"
#include "shardmesh/checkpoint/internal/save_plan.h"
#include "shardmesh/checkpoint/internal/staging_buffer.h"
#include "shardmesh/checkpoint/internal/state_tensors.h"
#include "shardmesh/checkpoint/safetensors_writer.h"

namespace shardmesh::checkpoint {
namespace {

using internal::Agree;
using internal::GatherTextsToFirst;
using internal::StateTensor;
using shardmesh::internal::BoxRuns;

std::string Shown(std::string_view name) { return Quoted(name, /*max_chars=*/200); }

// A piece of a tensor that this rank writes.
struct Piece {
  StateTensor tensor;
  Box box;                       // Of the saved array.
  const char* staged = nullptr;  // A copy of its bytes, in place of the tensor.
};

// One rank's part in a save.
class Saver {
 public:
  Saver(std::string directory, const StateDict& state, const SaveOptions& options)
      : state_(state),
        options_(options),
        ranks_(options.ranks != nullptr ? options.ranks : internal::RanksOf(state)),
        directory_(std::move(directory), ranks_,
                   options.files != nullptr ? *options.files : SystemFiles(), options.overwrite,
                   options.sync) {}

  // Collective, as is End().
  absl::Status Begin() {
    SHARDMESH_RETURN_IF_ERROR(Agree(ranks_, Plan()));
    return directory_.Begin();
  }
  absl::Status End(const absl::Status& of_write) {
    absl::Status status = Agree(ranks_, of_write);
    if (status.ok()) status = Agree(ranks_, WriteIndex());
    return directory_.End(status);
  }

  // From here on what is written is a copy in `buffer`.
  void Stage(internal::StagingBuffer& buffer) {
    int64_t bytes = 0;
    for (const Piece& piece : pieces_) bytes += BytesOf(piece);
    char* next = buffer.Reserve(bytes);
    for (Piece& piece : pieces_) {
      const char* const begin = next;
      ForEachRun(piece, [&](const char* run, int64_t run_bytes) {
        internal::CopyToStaging(next, run, run_bytes);
        next += run_bytes;
        return absl::OkStatus();
      }).IgnoreError();
      piece.staged = begin;
      piece.tensor.local = Tensor();
    }
  }

  // Local; on any thread once the state is staged.
  absl::Status WriteFile() {
    if (pieces_.empty()) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(
        const std::unique_ptr<OutputFile> file,
        directory_.files().CreateFile(directory_.FilePath(own_.files[0].name)));
    internal::FileWriter writer(*file, 0);
    SHARDMESH_RETURN_IF_ERROR(
        writer.Add(plan_.header.data(), static_cast<int64_t>(plan_.header.size())));
    writer.TakeChecksum();
    // In the order of the file.
    std::vector<size_t> order(pieces_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return std::pair(plan_.begin[a], a) < std::pair(plan_.begin[b], b);
    });
    std::vector<uint64_t> checksums(pieces_.size());
    for (size_t i : order) {
      SHARDMESH_RETURN_IF_ERROR(ForEachRun(
          pieces_[i], [&](const char* run, int64_t bytes) { return writer.Add(run, bytes); }));
      checksums[i] = writer.TakeChecksum();
    }
    SHARDMESH_RETURN_IF_ERROR(writer.Flush());
    if (options_.sync) SHARDMESH_RETURN_IF_ERROR(file->Sync());
    SHARDMESH_RETURN_IF_ERROR(file->Close());
    size_t next = 0;
    for (StoredArray& array : own_.arrays) {
      for (StoredPiece& piece : array.pieces) piece.checksum = checksums[next++];
    }
    return absl::OkStatus();
  }

 private:
  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int num_ranks() const { return ranks_ == nullptr ? 1 : ranks_->size(); }
  // ---- planning ---------------------------------------------------------------------------------
  absl::Status Plan() {
    absl::StatusOr<std::vector<StateTensor>> tensors = internal::TensorsOf(state_);
    if (!tensors.ok()) return Annotated(tensors.status());
    std::vector<internal::TensorToSave> to_save;
    for (const StateTensor& tensor : *tensors) {
      to_save.push_back({tensor.name, tensor.aliases, tensor.local.dtype(), tensor.layout,
                         tensor.layout ? tensor.mesh.coord() : Coord(), tensor.region});
    }
    absl::StatusOr<internal::SavePlan> plan =
        internal::PlanSave(to_save, rank(), num_ranks(), options_.metadata);
    if (!plan.ok()) return Annotated(plan.status());
    own_ = std::move(plan->contents);
    own_.values = internal::ValuesOf(state_);
    plan_ = std::move(plan->file);
    for (const auto& [i, box] : plan->boxes) pieces_.push_back({std::move((*tensors)[i]), box});
    return own_.ToJson().status();
  }

  static absl::Status Annotated(const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("Save: ", status.message()));
  }

  // ---- writing ----------------------------------------------------------------------------------
  static int64_t BytesOf(const Piece& piece) {
    return piece.box.NumElements() * SizeOf(piece.tensor.dtype);
  }

  // Calls fn(bytes, count) with the piece's bytes in order, until it fails.
  template <typename Fn>
  static absl::Status ForEachRun(const Piece& piece, const Fn& fn) {
    if (piece.box.IsEmpty()) return absl::OkStatus();
    if (piece.staged != nullptr) return fn(piece.staged, BytesOf(piece));
    const Tensor& local = piece.tensor.local;
    const int64_t element_bytes = SizeOf(local.dtype());
    const char* const data = static_cast<const char*>(local.raw_data());
    BoxRuns runs(local.shape(), Relative(piece.box, piece.tensor.local_box));
    const int64_t run_bytes = runs.run_elements() * element_bytes;
    while (const std::optional<int64_t> first = runs.Next())
      SHARDMESH_RETURN_IF_ERROR(fn(data + *first * element_bytes, run_bytes));
    return absl::OkStatus();
  }

  // ---- the end ----------------------------------------------------------------------------------
  absl::Status WriteIndex() {
    absl::StatusOr<std::string> own = own_.ToJson();
    const std::vector<std::string> all = GatherTextsToFirst(ranks_, own.ok() ? *own : "");
    if (!directory_.is_first_rank()) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(const Contents contents, Merged(all));
    SHARDMESH_ASSIGN_OR_RETURN(const std::string json, contents.ToJson());
    return directory_.WriteText(kIndexName, internal::WithChecksum(json));
  }

  absl::StatusOr<Contents> Merged(const std::vector<std::string>& all) const {
    Contents merged;
    std::unordered_map<std::string, size_t> index;
    for (size_t r = 0; r < all.size(); ++r) {
      SHARDMESH_ASSIGN_OR_RETURN(Contents part, Contents::FromJson(all[r]));
      const int first_file = static_cast<int>(merged.files.size());
      merged.files.insert(merged.files.end(), part.files.begin(), part.files.end());
      for (StoredArray& array : part.arrays) {
        for (StoredPiece& piece : array.pieces) piece.file += first_file;
        const auto [it, is_new] = index.emplace(array.name, merged.arrays.size());
        if (is_new) {
          merged.arrays.push_back(std::move(array));
          continue;
        }
        StoredArray& known = merged.arrays[it->second];
        if (known.dtype != array.dtype || !(known.shape == array.shape)) {
          return absl::InvalidArgumentError(absl::StrCat(
              "Save: tensor ", Shown(array.name), " is ", known.file_dtype, known.shape.ToString(),
              ", and on rank ", r, " ", array.file_dtype, array.shape.ToString()));
        }
        known.pieces.insert(known.pieces.end(), array.pieces.begin(), array.pieces.end());
      }
      if (r == 0) merged.values = part.values;
      SHARDMESH_RETURN_IF_ERROR(CheckSameValues(merged, part, r));
    }
    SHARDMESH_RETURN_IF_ERROR(merged.Check());
    return merged;
  }

  static absl::Status CheckSameValues(const Contents& first, const Contents& other, size_t rank) {
    for (size_t i = 0; i < std::max(first.values.size(), other.values.size()); ++i) {
      Contents a, b;
      if (i < first.values.size()) a.values = {first.values[i]};
      if (i < other.values.size()) b.values = {other.values[i]};
      SHARDMESH_ASSIGN_OR_RETURN(const std::string of_first, a.ToJson());
      SHARDMESH_ASSIGN_OR_RETURN(const std::string of_other, b.ToJson());
      if (of_first == of_other) continue;
      const auto& named = a.values.empty() ? b.values[0] : a.values[0];
      return absl::InvalidArgumentError(absl::StrCat(
          "Save: value ", Shown(named.first), " is another on rank ", rank, " than on rank 0"));
    }
    return absl::OkStatus();
  }

  const StateDict& state_;
  const SaveOptions& options_;
  Communicator* ranks_;
  internal::NewDirectory directory_;
  std::vector<Piece> pieces_;
  SafetensorsPlan plan_;
  Contents own_;  // All arrays, with the pieces of this rank.
};

// What `fn` returns, or what it throws.
absl::Status StatusOf(absl::FunctionRef<absl::Status()> fn) {
  absl::Status status;
  const absl::Status thrown = Catch([&] { status = fn(); });
  return thrown.ok() ? status : thrown;
}

}  // namespace

absl::Status Save(const std::string& directory, const StateDict& state,
                  const SaveOptions& options) {
  Saver saver(directory, state, options);
  SHARDMESH_RETURN_IF_ERROR(saver.Begin());
  return saver.End(saver.WriteFile());
}

// ---- in the background --------------------------------------------------------------------------

struct AsyncSaver::State {
  internal::StagingBuffer buffer;
  SaveOptions options;
  std::optional<Saver> saver;  // Of the save in flight.
  std::thread thread;
  absl::Status of_write;
  std::atomic<bool> is_written = true;
  double stall_seconds = 0;

  void Join() {
    if (thread.joinable()) thread.join();
  }
};

AsyncSaver::AsyncSaver() : state_(std::make_unique<State>()) {}
AsyncSaver::~AsyncSaver() { state_->Join(); }

absl::Status AsyncSaver::Save(const std::string& directory, const StateDict& state,
                              const SaveOptions& options) {
  SHARDMESH_RETURN_IF_ERROR(Wait());
  const absl::Time begin = absl::Now();
  State& own = *state_;
  own.options = options;
  own.saver.emplace(directory, state, own.options);
  const absl::Status status = own.saver->Begin();
  if (!status.ok()) {
    own.saver.reset();
    return status;
  }
  own.saver->Stage(own.buffer);
  own.is_written = false;
  own.thread = std::thread([&own] {
    own.of_write = StatusOf([&own] { return own.saver->WriteFile(); });
    own.is_written = true;
  });
  own.stall_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return absl::OkStatus();
}

absl::Status AsyncSaver::Wait() {
  State& own = *state_;
  if (!own.saver) return absl::OkStatus();
  own.Join();
  const absl::Status status = own.saver->End(own.of_write);
  own.saver.reset();
  return status;
}

bool AsyncSaver::is_written() const { return state_->is_written; }
double AsyncSaver::stall_seconds() const { return state_->stall_seconds; }

}  // namespace shardmesh::checkpoint
