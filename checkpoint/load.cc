// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/load.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/agreement.h"
#include "shardmesh/checkpoint/internal/box_runs.h"
#include "shardmesh/checkpoint/internal/listed.h"
#include "shardmesh/checkpoint/internal/piece_files.h"
#include "shardmesh/checkpoint/internal/state_tensors.h"

namespace shardmesh::checkpoint {
namespace {

using internal::Agree;
using internal::PieceFiles;
using internal::StateTensor;
using shardmesh::internal::BoxRuns;
using shardmesh::internal::Listed;

// Of what is read before it is copied to where its elements belong.
constexpr int64_t kStagingBytes = 4 << 20;

std::string Shown(std::string_view name) { return Quoted(name, /*max_chars=*/200); }

bool IsTensor(const StateValue& value) {
  return std::holds_alternative<Tensor>(value) || std::holds_alternative<DTensor>(value);
}

// The stored value with the live tensors within it; nothing if they do not fit each other. A list
// without tensors may have any length and items.
std::optional<StateValue> Joined(const StateValue& stored, const StateValue& live) {
  if (IsTensor(stored)) return IsTensor(live) ? std::optional(live) : std::nullopt;
  const auto* stored_list = std::get_if<StateList>(&stored);
  const auto* live_list = std::get_if<StateList>(&live);
  if (stored_list == nullptr || live_list == nullptr)
    return stored.index() == live.index() ? std::optional(stored) : std::nullopt;
  StateList joined;
  for (size_t i = 0; i < stored_list->items.size(); ++i) {
    const StateValue& item = stored_list->items[i];
    const bool has_live = i < live_list->items.size();
    std::optional<StateValue> value = item;
    if (IsTensor(item) || (has_live && std::holds_alternative<StateList>(item)))
      value = has_live ? Joined(item, live_list->items[i]) : std::nullopt;
    if (!value) return std::nullopt;
    joined.items.push_back(*std::move(value));
  }
  return joined;
}

// One rank's part in a load.
class Loader {
 public:
  Loader(std::string directory, StateDict& state, const LoadOptions& options)
      : directory_(std::move(directory)),
        state_(state),
        options_(options),
        ranks_(options.ranks != nullptr ? options.ranks : internal::RanksOf(state)) {}

  absl::Status Run() {
    SHARDMESH_RETURN_IF_ERROR(Agree(ranks_, Plan()));
    SHARDMESH_RETURN_IF_ERROR(Agree(ranks_, Read()));
    Assign();
    return absl::OkStatus();
  }

 private:
  struct Target {
    StateTensor tensor;
    std::vector<const StoredArray*> arrays;  // Of one value under several names.
    // Where it has no values yet.
    std::optional<MemoryCategory> new_in = std::nullopt;
  };

  // ---- planning ---------------------------------------------------------------------------------
  absl::Status Plan() {
    SHARDMESH_ASSIGN_OR_RETURN(contents_, Contents::Open(directory_));
    for (size_t i = 0; i < contents_.arrays.size(); ++i) {
      arrays_[contents_.arrays[i].name] = i;
      for (const std::string& alias : contents_.arrays[i].aliases) arrays_[alias] = i;
    }
    for (size_t i = 0; i < contents_.values.size(); ++i) values_[contents_.values[i].first] = i;
    for (size_t i = 0; i < state_.entries().size(); ++i) PlanEntry(i);
    absl::StatusOr<std::vector<StateTensor>> tensors = internal::TensorsOf(state_);
    if (!tensors.ok())
      return absl::Status(tensors.status().code(),
                          absl::StrCat("Load: ", tensors.status().message()));
    for (StateTensor& tensor : *tensors) PlanTensor({std::move(tensor), {}});
    return Problems();
  }

  void PlanEntry(size_t i) {
    const StateEntry& entry = state_.entries()[i];
    const StateValue value = entry.Get();
    if (const auto* unset = std::get_if<UnsetTensor>(&value)) {
      Target target = {{}, {}, unset->category};
      target.tensor.entry = i;
      target.tensor.name = entry.name;
      target.tensor.aliases = entry.aliases;
      target.tensor.mesh = unset->mesh;
      target.tensor.layout = unset->layout;
      target.tensor.local_box = unset->layout.LocalBox(unset->mesh.coord());
      target.tensor.region = Box::Whole(unset->layout.global_shape());
      target.tensor.dtype = unset->dtype;
      PlanTensor(std::move(target));
      return;
    }
    if (std::holds_alternative<DTensor>(value) || std::holds_alternative<Tensor>(value)) return;
    for (const std::string& name : AllNames(entry)) {
      const auto found = values_.find(name);
      if (found == values_.end()) continue;
      used_values_.insert(name);
      const StateValue& stored = contents_.values[found->second].second;
      if (std::optional<StateValue> joined = Joined(stored, value)) {
        plain_.push_back({i, *std::move(joined)});
      } else {
        other_kind_.push_back(absl::StrCat(Shown(name), " is ", DescribeStateValue(stored),
                                           ", expected ", DescribeStateValue(value)));
      }
      return;
    }
    Miss(entry.name, i);
  }

  void PlanTensor(Target target) {
    std::vector<std::string> names = target.tensor.aliases;
    names.insert(names.begin(), target.tensor.name);
    for (const std::string& name : names) {
      const auto found = arrays_.find(name);
      if (found == arrays_.end()) continue;
      const StoredArray* const array = &contents_.arrays[found->second];
      used_arrays_.insert(array);
      if (std::count(target.arrays.begin(), target.arrays.end(), array) > 0) continue;
      target.arrays.push_back(array);
      const Dims shape = target.tensor.region.Extents();
      if (!(array->shape == shape)) {
        misshapen_.push_back(absl::StrCat(Shown(name), " is ", array->shape.ToString(),
                                          ", expected ", shape.ToString()));
      }
      if (array->dtype != target.tensor.dtype && !(options_.allow_cast && array->dtype)) {
        other_dtype_.push_back(absl::StrCat(Shown(name), " is ", array->file_dtype, ", expected ",
                                            std::string(Name(target.tensor.dtype))));
      }
    }
    if (target.arrays.empty()) return Miss(target.tensor.name, target.tensor.entry);
    targets_.push_back(std::move(target));
  }

  void Miss(const std::string& name, size_t entry) {
    if (state_.entries()[entry].clear) {
      cleared_.push_back(entry);
    } else if (!options_.allow_missing) {
      missing_.push_back(Shown(name));
    }
  }

  absl::Status Problems() const {
    std::vector<std::string> unexpected;
    for (const StoredArray& array : contents_.arrays) {
      if (used_arrays_.count(&array) == 0) unexpected.push_back(Shown(array.name));
    }
    for (const auto& [name, value] : contents_.values) {
      if (used_values_.count(name) == 0) unexpected.push_back(Shown(name));
    }
    std::string problems;
    const auto add = [&](const char* what, const std::vector<std::string>& items) {
      if (!items.empty()) absl::StrAppend(&problems, "; ", what, Listed(items));
    };
    add("missing", missing_);
    if (!options_.allow_unexpected) add("not expected", unexpected);
    add("of another shape", misshapen_);
    add("of another dtype (see LoadOptions::allow_cast)", other_dtype_);
    add("of another kind", other_kind_);
    if (problems.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(directory_), " does not fit the state", problems));
  }

  // ---- reading ----------------------------------------------------------------------------------
  absl::Status Read() {
    PieceFiles files(contents_);
    for (Target& target : targets_) {
      if (target.new_in) {
        target.tensor.local =
            Tensor::Empty(target.tensor.mesh.context(), target.tensor.local_box.Extents(),
                          target.tensor.dtype, *target.new_in);
      }
      // Ranks that hold no elements take part in the write as well.
      target.tensor.local.storage()->BumpVersion();
      SHARDMESH_RETURN_IF_ERROR(ReadArray(*target.arrays[0], target.tensor, files));
      for (size_t i = 1; i < target.arrays.size(); ++i)
        SHARDMESH_RETURN_IF_ERROR(Compare(*target.arrays[i], target, files));
    }
    return absl::OkStatus();
  }

  absl::Status ReadArray(const StoredArray& array, const StateTensor& tensor, PieceFiles& files) {
    // In indices of the array.
    const Box region = Intersect(tensor.local_box, tensor.region);
    if (region.IsEmpty()) return absl::OkStatus();
    const Box wanted = Shifted(region, tensor.region.begin, -1);
    for (const StoredPiece& piece : array.pieces) {
      const Box part = Intersect(wanted, piece.box);
      if (part.IsEmpty()) continue;
      if (options_.verify) SHARDMESH_RETURN_IF_ERROR(files.Verify(array, piece));
      const Box of_local = Relative(Shifted(part, tensor.region.begin, +1), tensor.local_box);
      SHARDMESH_RETURN_IF_ERROR(ReadPart(array, piece, part, of_local, tensor.local, files));
    }
    return absl::OkStatus();
  }

  static Box Shifted(Box box, const Dims& by, int64_t sign) {
    for (int d = 0; d < box.num_dims(); ++d) {
      box.begin[d] += sign * by[d];
      box.end[d] += sign * by[d];
    }
    return box;
  }

  // `part` of the array, `at` in the local tensor.
  static absl::Status ReadPart(const StoredArray& array, const StoredPiece& piece, const Box& part,
                               const Box& at, const Tensor& local, PieceFiles& files) {
    BoxRuns runs(local.shape(), at);
    if (runs.run_elements() == at.NumElements()) {
      Tensor target = Tensor::Over(local.storage(), part.Extents(), local.dtype(),
                                   local.offset() + *runs.Next());
      return files.Read(array, piece, part, target);
    }
    // Rows of it by rows.
    const int64_t row_bytes =
        part.NumElements() / (part.end[0] - part.begin[0]) * SizeOf(local.dtype());
    const int64_t rows = std::max<int64_t>(1, kStagingBytes / row_bytes);
    for (int64_t begin = part.begin[0]; begin < part.end[0]; begin += rows) {
      Box slab = part, slab_at = at;
      slab.begin[0] = begin;
      slab.end[0] = std::min(begin + rows, part.end[0]);
      slab_at.begin[0] = at.begin[0] + (begin - part.begin[0]);
      slab_at.end[0] = slab_at.begin[0] + (slab.end[0] - slab.begin[0]);
      SHARDMESH_RETURN_IF_ERROR(ReadSlab(array, piece, slab, slab_at, local, files));
    }
    return absl::OkStatus();
  }

  static absl::Status ReadSlab(const StoredArray& array, const StoredPiece& piece, const Box& slab,
                               const Box& at, const Tensor& local, PieceFiles& files) {
    static thread_local ExecutionContext context;
    Tensor staging = Tensor::Empty(context, slab.Extents(), local.dtype());
    SHARDMESH_RETURN_IF_ERROR(files.Read(array, piece, slab, staging));
    const int64_t element_bytes = SizeOf(local.dtype());
    const char* source = static_cast<const char*>(staging.raw_data());
    char* const target = static_cast<char*>(local.mutable_raw_data());
    BoxRuns runs(local.shape(), at);
    const int64_t run_bytes = runs.run_elements() * element_bytes;
    while (const std::optional<int64_t> first = runs.Next()) {
      std::memcpy(target + *first * element_bytes, source, static_cast<size_t>(run_bytes));
      source += run_bytes;
    }
    return absl::OkStatus();
  }

  // Of one tensor under two names, both of which the checkpoint has.
  absl::Status Compare(const StoredArray& other, const Target& target, PieceFiles& files) {
    const Tensor& local = target.tensor.local;
    if (local.Bytes() == 0) return absl::OkStatus();
    static thread_local ExecutionContext context;
    StateTensor copy = target.tensor;
    copy.local = Tensor::Empty(context, local.shape(), local.dtype());
    SHARDMESH_RETURN_IF_ERROR(ReadArray(other, copy, files));
    if (std::memcmp(copy.local.raw_data(), local.raw_data(), static_cast<size_t>(local.Bytes())) ==
        0)
      return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("Load: ", Shown(target.arrays[0]->name), " and ", Shown(other.name),
                     " are one tensor of the state, and differ in ", Quoted(directory_)));
  }

  // ---- the end ----------------------------------------------------------------------------------
  void Assign() {
    for (Target& target : targets_) {
      if (!target.new_in) continue;
      state_.Assign(target.tensor.entry, DTensor(target.tensor.mesh, target.tensor.layout,
                                                 std::move(target.tensor.local)));
    }
    for (auto& [entry, value] : plain_) state_.Assign(entry, std::move(value));
    for (size_t entry : cleared_) state_.entries()[entry].clear();
  }

  std::string directory_;
  StateDict& state_;
  const LoadOptions& options_;
  Communicator* ranks_;
  Contents contents_;
  std::unordered_map<std::string, size_t> arrays_, values_;
  std::vector<Target> targets_;
  std::vector<std::pair<size_t, StateValue>> plain_;
  std::vector<size_t> cleared_;
  std::unordered_set<const StoredArray*> used_arrays_;
  std::unordered_set<std::string> used_values_;
  std::vector<std::string> missing_, misshapen_, other_dtype_, other_kind_;
};

}  // namespace

absl::Status Load(const std::string& directory, StateDict& state, const LoadOptions& options) {
  return Loader(directory, state, options).Run();
}

absl::Status Verify(const std::string& directory) {
  SHARDMESH_ASSIGN_OR_RETURN(const Contents contents, Contents::Open(directory));
  PieceFiles files(contents);
  for (size_t i = 0; i < contents.files.size(); ++i)
    SHARDMESH_RETURN_IF_ERROR(files.VerifyHeader(static_cast<int>(i)));
  for (const StoredArray& array : contents.arrays) {
    for (const StoredPiece& piece : array.pieces)
      SHARDMESH_RETURN_IF_ERROR(files.Verify(array, piece));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::checkpoint
