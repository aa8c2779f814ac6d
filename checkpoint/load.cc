// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/load.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <span>
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
#include "shardmesh/checkpoint/internal/parallel.h"
#include "shardmesh/checkpoint/internal/part_reader.h"
#include "shardmesh/checkpoint/internal/piece_files.h"
#include "shardmesh/checkpoint/internal/read_plan.h"
#include "shardmesh/checkpoint/internal/share.h"
#include "shardmesh/checkpoint/internal/state_tensors.h"

namespace shardmesh::checkpoint {
namespace {

using internal::Agree;
using internal::PartToRead;
using internal::PieceFiles;
using internal::ReadPart;
using internal::ReplicaShare;
using internal::StateTensor;
using shardmesh::internal::BoxRuns;
using shardmesh::internal::Listed;

constexpr const char* kShare = "checkpoint_share";

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
    // All ranks have their parts, so all come here.
    if (options_.share_reads) Exchange();
    Assign();
    return absl::OkStatus();
  }

 private:
  struct Target {
    StateTensor tensor;
    std::vector<const StoredArray*> arrays;    // Of one value under several names.
    std::vector<std::vector<ReadPart>> parts;  // What this rank reads of each array.
    ReplicaShare share;                        // With LoadOptions::share_reads; of the tensor.
    // Where it has no values yet.
    std::optional<MemoryCategory> new_in;
  };

  // ---- planning ---------------------------------------------------------------------------------
  absl::Status Plan() {
    if (options_.threads < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("Load: threads is ", options_.threads, ", expected at least 1"));
    }
    // Each rank checks the boxes that it reads: together they are all.
    SHARDMESH_ASSIGN_OR_RETURN(contents_,
                               Contents::Open(directory_, OpenOptions{.check_coverage = false}));
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
    for (StateTensor& tensor : *tensors) PlanTensor(TargetOf(std::move(tensor)));
    SHARDMESH_RETURN_IF_ERROR(Problems());
    for (Target& target : targets_) SHARDMESH_RETURN_IF_ERROR(PlanParts(target));
    return absl::OkStatus();
  }

  static Target TargetOf(StateTensor tensor) {
    Target target;
    target.tensor = std::move(tensor);
    return target;
  }

  void PlanEntry(size_t i) {
    const StateEntry& entry = state_.entries()[i];
    const StateValue value = entry.Get();
    if (const auto* unset = std::get_if<UnsetTensor>(&value)) {
      Target target;
      target.new_in = unset->category;
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

  absl::Status PlanParts(Target& target) {
    const StateTensor& tensor = target.tensor;
    Box region = Intersect(tensor.local_box, tensor.region);
    if (options_.share_reads && tensor.layout) {
      target.share =
          SharesOn(tensor.mesh)
              .NextShare(tensor.layout, tensor.mesh.coord(), SizeOf(tensor.dtype), tensor.region);
      const int replica = target.share.replica;
      const bool has_part = target.share.HasPart(replica) && !region.IsEmpty();
      region = has_part ? target.share.PartOf(replica) : Box::Whole({0});
    }
    for (const StoredArray* array : target.arrays) {
      std::vector<ReadPart>& parts = target.parts.emplace_back();
      if (region.IsEmpty()) continue;
      // In indices of the array.
      const Box wanted = Shifted(region, tensor.region.begin, -1);
      const absl::Status status = internal::PlanRead(*array, wanted, parts);
      if (!status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat(Quoted(directory_), ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  // Ranks of a replica may be on other meshes besides, so the meshes are counted apart.
  internal::ShareMaker& SharesOn(const DeviceMesh& mesh) {
    for (auto& [known, shares] : shares_) {
      if (known == mesh) return shares;
    }
    return shares_.emplace_back(mesh, internal::ShareMaker()).second;
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
    PieceFiles files(contents_, options_.files);
    if (options_.verify) SHARDMESH_RETURN_IF_ERROR(VerifyPieces(files));
    std::vector<PartToRead> parts;
    for (Target& target : targets_) {
      if (target.new_in) {
        target.tensor.local =
            Tensor::Empty(target.tensor.mesh.context(), target.tensor.local_box.Extents(),
                          target.tensor.dtype, *target.new_in);
      }
      // Ranks that hold no elements take part in the write as well.
      target.tensor.local.storage()->BumpVersion();
      AppendParts(target, 0, target.tensor.local, parts);
    }
    SHARDMESH_RETURN_IF_ERROR(internal::ReadParts(files, parts, PartOptions()));
    for (const Target& target : targets_) {
      for (size_t i = 1; i < target.arrays.size(); ++i)
        SHARDMESH_RETURN_IF_ERROR(Compare(i, target, files));
    }
    return absl::OkStatus();
  }

  // A part that is in a gap is another replica's.
  internal::PartReadOptions PartOptions() const {
    return {.threads = options_.threads, .read_gaps = !options_.share_reads};
  }

  // Each that is used, once.
  absl::Status VerifyPieces(PieceFiles& files) const {
    std::vector<std::pair<const StoredArray*, const StoredPiece*>> pieces;
    std::unordered_set<const StoredPiece*> seen;
    for (const Target& target : targets_) {
      for (size_t i = 0; i < target.arrays.size(); ++i) {
        for (const ReadPart& part : target.parts[i]) {
          if (seen.insert(part.piece).second) pieces.emplace_back(target.arrays[i], part.piece);
        }
      }
    }
    return internal::ForEachInParallel(pieces.size(), options_.threads, [&](size_t i) {
      return files.Verify(*pieces[i].first, *pieces[i].second);
    });
  }

  // What is read of array i of the target, into a tensor like its local one.
  static void AppendParts(const Target& target, size_t i, const Tensor& local,
                          std::vector<PartToRead>& parts) {
    for (const ReadPart& part : target.parts[i]) {
      PartToRead& to_read = parts.emplace_back();
      to_read.array = target.arrays[i];
      to_read.piece = part.piece;
      to_read.box = part.box;
      to_read.dtype = local.dtype();
      to_read.data = static_cast<char*>(local.mutable_raw_data());
      to_read.shape = local.shape();
      to_read.at = AtOf(target, Shifted(part.box, target.tensor.region.begin, +1));
    }
  }

  // The place of a box of the tensor in the local one.
  static Box AtOf(const Target& target, const Box& box) {
    return Relative(box, target.tensor.local_box);
  }

  static Box Shifted(Box box, const Dims& by, int64_t sign) {
    for (int d = 0; d < box.num_dims(); ++d) {
      box.begin[d] += sign * by[d];
      box.end[d] += sign * by[d];
    }
    return box;
  }

  // Of one tensor under two names, both of which the checkpoint has.
  absl::Status Compare(size_t i, const Target& target, PieceFiles& files) const {
    const Tensor& local = target.tensor.local;
    if (target.parts[i].empty()) return absl::OkStatus();
    ExecutionContext context;
    const Tensor copy = Tensor::Empty(context, local.shape(), local.dtype());
    std::vector<PartToRead> parts;
    AppendParts(target, i, copy, parts);
    SHARDMESH_RETURN_IF_ERROR(internal::ReadParts(files, parts, PartOptions()));
    for (const PartToRead& part : parts) {
      BoxRuns runs(local.shape(), part.at);
      const int64_t element_bytes = SizeOf(local.dtype());
      const auto run_bytes = static_cast<size_t>(runs.run_elements() * element_bytes);
      const auto* const expected = static_cast<const char*>(local.raw_data());
      while (const std::optional<int64_t> first = runs.Next()) {
        const int64_t at = *first * element_bytes;
        if (std::memcmp(part.data + at, expected + at, run_bytes) == 0) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "Load: ", Shown(target.arrays[0]->name), " and ", Shown(target.arrays[i]->name),
            " are one tensor of the state, and differ in ", Quoted(directory_)));
      }
    }
    return absl::OkStatus();
  }

  // ---- sharing ----------------------------------------------------------------------------------
  // Between the replicas along some axes of a mesh: one all-gather of the boxes that are split, and
  // one broadcast of each replica's others.
  struct Group {
    DeviceMesh mesh;
    std::vector<int> axes;
    std::vector<AllGatherItem> split;
    std::map<int, std::vector<Tensor>> owned;
  };

  void Exchange() const {
    std::vector<Group> groups;
    for (const Target& target : targets_) {
      if (target.share.axes.empty() || target.share.box.IsEmpty()) continue;
      auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& known) {
        return known.mesh == target.tensor.mesh && known.axes == target.share.axes;
      });
      if (group == groups.end())
        group = groups.insert(groups.end(), {target.tensor.mesh, target.share.axes, {}, {}});
      AddTo(*group, target);
    }
    for (Group& group : groups) {
      Communicator& ranks = group.mesh.Group(std::span<const int>(group.axes));
      std::vector<Work> works;
      if (!group.split.empty()) works.push_back(ranks.AllGather(std::move(group.split), kShare));
      for (auto& [owner, tensors] : group.owned)
        works.push_back(ranks.Broadcast(std::move(tensors), owner, kShare));
      for (Work& work : works) work.Wait();
    }
  }

  static void AddTo(Group& group, const Target& target) {
    const ReplicaShare& share = target.share;
    if (share.dim < 0) {
      group.owned[share.owner].push_back(ViewOf(target, share.box));
      return;
    }
    AllGatherItem item;
    for (int r = 0; r < share.replicas; ++r)
      item.targets.push_back(ViewOf(target, share.PartOf(r)));
    item.source = item.targets[static_cast<size_t>(share.replica)];
    group.split.push_back(std::move(item));
  }

  static Tensor ViewOf(const Target& target, const Box& box) {
    const Box at = AtOf(target, box);
    Tensor view = target.tensor.local;
    for (int d = 0; d < at.num_dims(); ++d)
      view = view.Narrow(d, at.begin[d], at.end[d] - at.begin[d]);
    return view;
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
  std::vector<std::pair<DeviceMesh, internal::ShareMaker>> shares_;
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
