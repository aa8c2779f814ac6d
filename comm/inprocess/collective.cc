// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/inprocess/collective.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/rank_list.h"

namespace shardmesh::inprocess {

Collective::Collective(std::shared_ptr<const GroupIdentity> group, int64_t sequence)
    : group_(std::move(group)), sequence_(sequence), members_(group_->world_ranks.size()) {}

std::string Collective::Join(int member, PostedCall call) {
  std::string difference;
  if (num_posted_ == 0) {
    first_to_post_ = member;
  } else {
    difference = Difference(call, members_[first_to_post_].call);
    if (!difference.empty()) {
      difference =
          absl::StrCat("rank ", group_->world_ranks[member], " posted ", call.name.ToString(),
                       ", rank ", group_->world_ranks[first_to_post_], " posted ",
                       members_[first_to_post_].call.name.ToString(), ": ", difference);
    }
  }
  members_[member].call = std::move(call);
  members_[member].has_posted = true;
  ++num_posted_;
  return difference;
}

std::string Collective::Seal() {
  const Operands& operands = members_[0].call.operands;
  std::string misfit;
  if (std::holds_alternative<SplitRequest>(operands)) misfit = SealSplit();
  if (std::holds_alternative<std::vector<AllToAllItem>>(operands)) misfit = SealAllToAll();
  if (!misfit.empty()) return misfit;
  movement_ = Movement(members_);
  if (movement_.num_parts() == 0) {
    Finish();
  } else {
    if (movement_.num_parts() > 1) {
      next_parts_ = std::vector<std::atomic<int>>(size());
      for (int m = 0; m < size(); ++m)
        next_parts_[m].store(FirstPart(m), std::memory_order_relaxed);
    }
    untaken_parts_.store(movement_.num_parts(), std::memory_order_relaxed);
    phase_.store(Phase::kReady);
  }
  return "";
}

std::string Collective::SealSplit() {
  const auto request = [&](int m) -> const SplitRequest& {
    return std::get<SplitRequest>(members_[m].call.operands);
  };
  std::map<int, std::vector<int>> members_of;
  for (int m = 0; m < size(); ++m) {
    if (request(m).color >= 0) members_of[request(m).color].push_back(m);
  }
  split_results_.resize(size());
  for (auto& [color, members] : members_of) {
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return request(a).key < request(b).key; });
    const std::string& name = request(members[0]).name;
    std::vector<int> world_ranks;
    for (const int m : members) {
      if (request(m).name != name) {
        return absl::StrCat("rank ", group_->world_ranks[m], " names the group of color ", color,
                            " \"", request(m).name, "\", rank ", group_->world_ranks[members[0]],
                            " \"", name, "\"");
      }
      world_ranks.push_back(group_->world_ranks[m]);
    }
    const auto group = std::make_shared<Group>(name, std::move(world_ranks));
    for (size_t i = 0; i < members.size(); ++i)
      split_results_[members[i]] = {group, static_cast<int>(i)};
  }
  return "";
}

std::string Collective::SealAllToAll() const {
  for (int i = 0; i < size(); ++i) {
    for (int j = 0; j < size(); ++j) {
      std::string difference = PairDifference(members_[i].call, i, members_[j].call, j);
      if (!difference.empty()) return difference;
    }
  }
  return "";
}

void Collective::Detach(int member, ExecutionContext& context) {
  internal::Detach(context, member, members_[member].call);
  members_[member].is_detached = true;
}

std::string Collective::ToString() const {
  std::vector<int> arrived, missing;
  for (int m = 0; m < size(); ++m)
    (HasPosted(m) ? arrived : missing).push_back(group_->world_ranks[m]);
  std::string text = absl::StrCat("collective ", sequence_, " of group \"", group_->name,
                                  "\" (ranks ", RankList(group_->world_ranks),
                                  "): ", members_[first_to_post_].call.name.ToString(),
                                  "; arrived: ", RankList(arrived));
  if (!missing.empty()) absl::StrAppend(&text, "; missing: ", RankList(missing));
  return text;
}

int Collective::TakePart(int member) {
  if (next_parts_.empty()) return untaken_parts_.exchange(0, std::memory_order_relaxed) - 1;
  for (int i = 0; i < size(); ++i) {
    const int stretch = (member + i) % size();
    const int end = FirstPart(stretch + 1);
    std::atomic<int>& next = next_parts_[stretch];
    if (next.load(std::memory_order_relaxed) >= end) continue;
    const int part = next.fetch_add(1, std::memory_order_relaxed);
    if (part >= end) continue;
    untaken_parts_.fetch_sub(1, std::memory_order_relaxed);
    return part;
  }
  return -1;
}

bool Collective::RunPart(int member, absl::FunctionRef<void(const absl::Status& error)> on_error) {
  if (!HasParts()) return false;
  const int part = TakePart(member);  // Negative if others were faster.
  if (part < 0) return false;
  try {
    movement_.RunPart(part, members_);
  } catch (...) {
    on_error(StatusOf(std::current_exception()));
  }
  // The increments form a release sequence: who makes the last one has seen the writes of all
  // parts.
  if (parts_run_.fetch_add(1, std::memory_order_acq_rel) + 1 < movement_.num_parts()) return false;
  Finish();
  return true;
}

void Collective::Finish() {
  for (int m = 0; m < size(); ++m) {
    if (members_[m].is_detached) Release(m);
  }
  phase_.store(Phase::kDone);
}

}  // namespace shardmesh::inprocess
