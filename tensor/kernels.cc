// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/kernel_table.h"
#include "shardmesh/tensor/time_profile.h"

namespace shardmesh {
namespace {

KernelTable MakeCpuTable() {
  KernelTable table = {};
  FillCopyKernels(table);
  FillElementwiseKernels(table);
  FillBinaryKernels(table);
  FillReduceKernels(table);
  FillMatmulKernels(table);
  FillRowsKernels(table);
  FillLookupKernels(table);
  FillIndexingKernels(table);
  FillLinalgKernels(table);
  FillAttentionKernels(table);
  FillRandomKernels(table);
  FillOptimizerKernels(table);
  return table;
}

const KernelTable& CpuKernels() {
  static const KernelTable table = MakeCpuTable();
  return table;
}

template <auto... kEntries>
struct EntryList {};
using AllEntries = EntryList<
    &KernelTable::fill, &KernelTable::copy, &KernelTable::elementwise,
    &KernelTable::elementwise_gradient, &KernelTable::binary, &KernelTable::binary_scalar,
    &KernelTable::compare, &KernelTable::compare_scalar, &KernelTable::compare_integer,
    &KernelTable::where, &KernelTable::accumulate, &KernelTable::reduce,
    &KernelTable::sum_of_squares, &KernelTable::matmul, &KernelTable::softmax,
    &KernelTable::softmax_backward, &KernelTable::rms_norm, &KernelTable::rms_norm_backward,
    &KernelTable::layer_norm, &KernelTable::layer_norm_backward, &KernelTable::find_out_of_range,
    &KernelTable::embedding, &KernelTable::embedding_backward, &KernelTable::cross_entropy_terms,
    &KernelTable::cross_entropy_backward, &KernelTable::scan,
    &KernelTable::cumulative_product_backward, &KernelTable::sort, &KernelTable::gather,
    &KernelTable::scatter, &KernelTable::cholesky, &KernelTable::log_determinant,
    &KernelTable::solve, &KernelTable::solve_triangular, &KernelTable::qr, &KernelTable::eigh,
    &KernelTable::rotary, &KernelTable::attention, &KernelTable::attention_backward,
    &KernelTable::random_uniform, &KernelTable::random_normal, &KernelTable::dropout,
    &KernelTable::adamw, &KernelTable::sgd>;

// One entry of the two tables made here.
template <auto kEntry>
struct Entry;
template <typename Result, typename... Args,
          Result (*KernelTable::*kEntry)(ExecutionContext&, Args...)>
struct Entry<kEntry> {
  static Result DoNothing(ExecutionContext&, Args...) { return Result(); }

  static Result RunTimed(ExecutionContext& context, Args... args) {
    constexpr bool kIsGemm = std::is_same_v<Entry, Entry<&KernelTable::matmul>>;
    const TimeProfile::Span span(context, kIsGemm ? TimeKind::kGemm : TimeKind::kOtherKernels);
    return (CpuKernels().*kEntry)(context, static_cast<Args&&>(args)...);
  }
};

template <auto... kEntries>
KernelTable MakeTimedCpuTable(EntryList<kEntries...>) {
  static_assert(sizeof(KernelTable) == sizeof...(kEntries) * sizeof(void (*)()),
                "AllEntries lacks an entry of the table");
  KernelTable table = {};
  ((table.*kEntries = Entry<kEntries>::RunTimed), ...);
  return table;
}

template <auto... kEntries>
KernelTable MakeMetaTable(EntryList<kEntries...>) {
  KernelTable table = {};
  ((table.*kEntries = Entry<kEntries>::DoNothing), ...);
  return table;
}

}  // namespace

const KernelTable& KernelsFor(Device device) {
  static const KernelTable cpu = MakeTimedCpuTable(AllEntries());
  static const KernelTable meta = MakeMetaTable(AllEntries());
  switch (device.kind) {
    case DeviceKind::kCpu:
      return cpu;
    case DeviceKind::kMeta:
      return meta;
    case DeviceKind::kCuda:
      break;
  }
  Throw(absl::StatusCode::kUnavailable, "device ", device.ToString(),
        ": built without CUDA; rebuild with --config=cuda");
}

}  // namespace shardmesh
