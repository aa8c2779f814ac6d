// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/operands.h"

#include <algorithm>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"

namespace shardmesh::internal {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

/// One operand of one item of a batch, named only when there is something to say about it.
struct Place {
  const CallSite& site;
  size_t item;
  const char* operand;
  int index = -1;

  template <typename... Parts>
  [[noreturn]] void Reject(const Parts&... parts) const {
    ThrowInvalid(View(Name(site.kind)), " in group \"", View(site.group), "\" (op \"",
                 View(site.op), "\"), item ", item, ": ", operand,
                 index < 0 ? "" : absl::StrCat("[", index, "]"), " ", parts...);
  }
};

/// A zero stride makes several elements one; writing them from several sources has no defined
/// result.
bool HasRepeatedElements(const Tensor& tensor) {
  for (int d = 0; d < tensor.num_dims(); ++d) {
    if (tensor.dim(d) > 1 && tensor.strides()[d] == 0) return true;
  }
  return false;
}

void CheckSource(const Place& place, const Tensor& tensor) {
  if (!tensor) place.Reject("is no tensor");
  if (!(tensor.device() == place.site.device)) {
    place.Reject("is on ", tensor.device().ToString(), ", expected ", place.site.device.ToString());
  }
  // Throws for a released storage: later, a peer's thread would find it.
  if (tensor.NumElements() > 0) (void)tensor.raw_data();
}

void CheckTarget(const Place& place, const Tensor& tensor) {
  CheckSource(place, tensor);
  if (HasRepeatedElements(tensor)) place.Reject("is an expanded view and cannot be written");
}

void CheckLike(const Place& place, const Tensor& tensor, const Tensor& expected, const char* of) {
  if (tensor.dtype() == expected.dtype() && tensor.shape() == expected.shape()) return;
  place.Reject("is ", tensor.ToString(), ", expected ", expected.ToString(), " as ", of);
}

void CheckDType(const Place& place, const Tensor& tensor, DType expected) {
  if (tensor.dtype() == expected) return;
  place.Reject("is ", tensor.ToString(), ", expected dtype ", View(Name(expected)),
               " as the rest of the item");
}

void CheckReducible(const Place& place, const Tensor& tensor) {
  if (tensor.dtype() == DType::kBool)
    place.Reject("is ", tensor.ToString(), ": bool cannot be reduced");
}

void CheckCount(const Place& place, size_t count) {
  if (count == static_cast<size_t>(place.site.size)) return;
  place.Reject("has ", count, " tensors, expected one for each of the ", place.site.size,
               " members");
}

/// The storages under targets, each of them once.
class WrittenStorages {
 public:
  void Add(const Tensor& target) {
    Storage* const storage = target.storage().get();
    // Mostly, the targets of an item are views of one tensor.
    if (storages_.empty() || storages_.back() != storage) storages_.push_back(storage);
  }
  void Add(std::span<const Tensor> targets) {
    for (const Tensor& target : targets) Add(target);
  }
  void BumpVersions() {
    std::sort(storages_.begin(), storages_.end());
    const auto end = std::unique(storages_.begin(), storages_.end());
    std::for_each(storages_.begin(), end, [](Storage* storage) { storage->BumpVersion(); });
  }

 private:
  absl::InlinedVector<Storage*, 8> storages_;
};

/// Bytes of `tensors` but the one of this rank.
int64_t BytesToOthers(const CallSite& site, std::span<const Tensor> tensors) {
  int64_t bytes = 0;
  for (int m = 0; m < site.size; ++m) {
    if (m != site.rank) bytes += tensors[m].Bytes();
  }
  return bytes;
}

}  // namespace

void CheckOperands(const CallSite& site, std::span<const AllGatherItem> batch) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const AllGatherItem& item = batch[i];
    CheckSource({site, i, "source"}, item.source);
    CheckCount({site, i, "targets"}, item.targets.size());
    for (int m = 0; m < site.size; ++m) {
      const Place place = {site, i, "targets", m};
      CheckTarget(place, item.targets[m]);
      CheckDType(place, item.targets[m], item.source.dtype());
    }
    CheckLike({site, i, "targets", site.rank}, item.targets[site.rank], item.source, "the source");
  }
}

void CheckOperands(const CallSite& site, std::span<const ReduceScatterItem> batch) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const ReduceScatterItem& item = batch[i];
    CheckTarget({site, i, "target"}, item.target);
    CheckReducible({site, i, "target"}, item.target);
    CheckCount({site, i, "sources"}, item.sources.size());
    for (int m = 0; m < site.size; ++m) {
      const Place place = {site, i, "sources", m};
      CheckSource(place, item.sources[m]);
      CheckDType(place, item.sources[m], item.target.dtype());
    }
    CheckLike({site, i, "target"}, item.target, item.sources[site.rank],
              "this rank's own part of the sources");
  }
}

void CheckOperands(const CallSite& site, std::span<const AllReduceItem> batch) {
  for (size_t i = 0; i < batch.size(); ++i) {
    CheckSource({site, i, "source"}, batch[i].source);
    CheckReducible({site, i, "source"}, batch[i].source);
    CheckTarget({site, i, "target"}, batch[i].target);
    CheckLike({site, i, "target"}, batch[i].target, batch[i].source, "the source");
  }
}

void CheckOperands(const CallSite& site, std::span<const AllToAllItem> batch) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const AllToAllItem& item = batch[i];
    CheckCount({site, i, "sends"}, item.sends.size());
    CheckCount({site, i, "receives"}, item.receives.size());
    for (int m = 0; m < site.size; ++m) {
      CheckSource({site, i, "sends", m}, item.sends[m]);
      CheckTarget({site, i, "receives", m}, item.receives[m]);
      CheckDType({site, i, "sends", m}, item.sends[m], item.sends[0].dtype());
      CheckDType({site, i, "receives", m}, item.receives[m], item.sends[0].dtype());
    }
    CheckLike({site, i, "receives", site.rank}, item.receives[site.rank], item.sends[site.rank],
              "what it sends itself");
  }
}

void CheckOperands(const CallSite& site, std::span<const Tensor> tensors, int root) {
  if (root < 0 || root >= site.size) {
    ThrowInvalid("broadcast in group \"", View(site.group), "\" (op \"", View(site.op),
                 "\"): root ", root, " is not a member: ranks are 0 to ", site.size - 1);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (site.rank == root) {
      CheckSource({site, i, "tensor"}, tensors[i]);
    } else {
      CheckTarget({site, i, "tensor"}, tensors[i]);
    }
  }
}

void BumpVersions(std::span<const AllGatherItem> batch) {
  WrittenStorages written;
  for (const AllGatherItem& item : batch) written.Add(item.targets);
  written.BumpVersions();
}

void BumpVersions(std::span<const ReduceScatterItem> batch) {
  WrittenStorages written;
  for (const ReduceScatterItem& item : batch) written.Add(item.target);
  written.BumpVersions();
}

void BumpVersions(std::span<const AllReduceItem> batch) {
  WrittenStorages written;
  for (const AllReduceItem& item : batch) written.Add(item.target);
  written.BumpVersions();
}

void BumpVersions(std::span<const AllToAllItem> batch) {
  WrittenStorages written;
  for (const AllToAllItem& item : batch) written.Add(item.receives);
  written.BumpVersions();
}

void BumpVersions(std::span<const Tensor> tensors) {
  WrittenStorages written;
  written.Add(tensors);
  written.BumpVersions();
}

int64_t BytesSent(const CallSite& site, std::span<const AllGatherItem> batch) {
  int64_t bytes = 0;
  for (const AllGatherItem& item : batch) bytes += (site.size - 1) * item.source.Bytes();
  return bytes;
}

int64_t BytesSent(const CallSite& site, std::span<const ReduceScatterItem> batch) {
  int64_t bytes = 0;
  for (const ReduceScatterItem& item : batch) bytes += BytesToOthers(site, item.sources);
  return bytes;
}

int64_t BytesSent(const CallSite& site, std::span<const AllReduceItem> batch) {
  int64_t bytes = 0;
  for (const AllReduceItem& item : batch) {
    const int64_t n = item.source.NumElements();
    const int64_t chunk = (n + site.size - 1) / site.size;
    const int64_t begin = std::min(n, chunk * site.rank);
    const int64_t own = std::min(n, begin + chunk) - begin;
    // Reduce-scatter, then all-gather: whole - own chunk, then (p - 1) x own chunk.
    bytes += (n - own + (site.size - 1) * own) * SizeOf(item.source.dtype());
  }
  return bytes;
}

int64_t BytesSent(const CallSite& site, std::span<const AllToAllItem> batch) {
  int64_t bytes = 0;
  for (const AllToAllItem& item : batch) bytes += BytesToOthers(site, item.sends);
  return bytes;
}

int64_t BytesSent(const CallSite& site, std::span<const Tensor> tensors, int root) {
  if (site.rank != root) return 0;
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += (site.size - 1) * tensor.Bytes();
  return bytes;
}

}  // namespace shardmesh::internal
