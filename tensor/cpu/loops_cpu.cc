// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/loops_cpu.h"

#include <algorithm>
#include <cstdlib>

#include "shardmesh/base/check.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh::cpu {
namespace {

constexpr int kMaxOperands = 5;

// Elements of an operand that are gathered at a time.
constexpr int64_t kGathered = 512;

// Where an operand has the elements of a run far apart, runs are this short, so that the next run
// finds the cache lines still there.
constexpr int64_t kTransposedRun = 64;

template <typename T>
void CopyStrided(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t n) {
  const T* x = reinterpret_cast<const T*>(from);
  T* out = reinterpret_cast<T*>(to);
  if (from_stride == 0 && to_stride == 1) {
    std::fill_n(out, n, *x);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i * to_stride] = x[i * from_stride];
}

// Elements of `item` bytes; strides in elements.
void CopyStrided(int64_t item, const char* from, int64_t from_stride, char* to, int64_t to_stride,
                 int64_t n) {
  switch (item) {
    case 1:
      return CopyStrided<uint8_t>(from, from_stride, to, to_stride, n);
    case 2:
      return CopyStrided<uint16_t>(from, from_stride, to, to_stride, n);
    case 4:
      return CopyStrided<uint32_t>(from, from_stride, to, to_stride, n);
    default:
      return CopyStrided<uint64_t>(from, from_stride, to, to_stride, n);
  }
}

struct LoopOperands {
  int inputs = 0, size = 0;
  const Tensor* tensors[kMaxOperands];
  char* data[kMaxOperands];
  int64_t item[kMaxOperands];

  LoopOperands(std::span<const Tensor* const> in, std::span<const Tensor* const> out) {
    SHARDMESH_CHECK(in.size() + out.size() <= kMaxOperands) << "too many operands";
    inputs = static_cast<int>(in.size());
    for (const auto& list : {in, out}) {
      for (const Tensor* x : list) {
        tensors[size] = x;
        item[size] = SizeOf(x->dtype());
        // Inputs are only read.
        data[size++] = static_cast<char*>(shardmesh::internal::OutputData(*x));
      }
    }
  }
};

// Dims that all operands share, outermost first, without those of extent 1.
class LoopNest {
 public:
  explicit LoopNest(const LoopOperands& operands) : operands_(operands) {
    const Tensor& out = *operands.tensors[operands.size - 1];
    for (int dim = 0; dim < out.num_dims(); ++dim) {
      if (out.dim(dim) == 1) continue;
      extents_[rank_] = out.dim(dim);
      for (int k = 0; k < operands.size; ++k) {
        strides_[rank_][k] = operands.tensors[k]->strides()[dim];
      }
      ++rank_;
    }
    SortByOutput();
    Merge();
    CutIntoBlocks();
  }

  void Run(ExecutionContext& context, RunFn fn) const {
    const int64_t tile = std::max<int64_t>(1, kTileElements / (rows_ * run_));
    ForTiles(context, blocks_, tile, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) RunBlock(block, fn);
    });
  }

 private:
  // Insertion sort: there are few dims, and they are mostly in order.
  void SortByOutput() {
    const int out = operands_.size - 1;
    for (int dim = 1; dim < rank_; ++dim) {
      for (int at = dim; at > 0; --at) {
        if (std::abs(strides_[at - 1][out]) >= std::abs(strides_[at][out])) break;
        std::swap(extents_[at - 1], extents_[at]);
        std::swap(strides_[at - 1], strides_[at]);
      }
    }
  }

  // Joins dims that follow one another in all operands.
  void Merge() {
    int last = 0;
    for (int dim = 1; dim < rank_; ++dim) {
      bool follows = true;
      for (int k = 0; k < operands_.size; ++k) {
        follows &= strides_[last][k] == extents_[dim] * strides_[dim][k];
      }
      if (follows) {
        extents_[last] *= extents_[dim];
      } else {
        extents_[++last] = extents_[dim];
      }
      std::copy_n(strides_[dim], operands_.size, strides_[last]);
    }
    if (rank_ > 0) rank_ = last + 1;
  }

  void PrependOne() {
    for (int dim = rank_; dim > 0; --dim) {
      extents_[dim] = extents_[dim - 1];
      std::copy_n(strides_[dim - 1], operands_.size, strides_[dim]);
    }
    extents_[0] = 1;
    std::fill_n(strides_[0], operands_.size, 0);
    ++rank_;
  }

  // The last dim gives the runs. The one before it, or one along which an operand is contiguous
  // that is not so along the run, gives the rows of a block.
  void CutIntoBlocks() {
    while (rank_ < 2) PrependOne();
    const int last = rank_ - 1;
    run_ = std::min(extents_[last], kTileElements);
    for (int k = 0; k < operands_.size; ++k) {
      if (strides_[last][k] == 0 || strides_[last][k] == 1) continue;
      for (int dim = 0; dim < last; ++dim) {
        if (strides_[dim][k] != 1) continue;
        std::swap(extents_[dim], extents_[last - 1]);
        std::swap(strides_[dim], strides_[last - 1]);
        run_ = std::min(run_, kTransposedRun);
      }
    }
    runs_ = (extents_[last] + run_ - 1) / run_;
    rows_ = std::min(extents_[last - 1], std::max<int64_t>(1, kTileElements / run_));
    row_groups_ = (extents_[last - 1] + rows_ - 1) / rows_;
    blocks_ = runs_ * row_groups_;
    for (int dim = 0; dim < last - 1; ++dim) blocks_ *= extents_[dim];
    for (int k = 0; k < operands_.size; ++k) all_unit_ &= run_ == 1 || strides_[last][k] == 1;
  }

  void RunBlock(int64_t index, RunFn fn) const {
    const int last = rank_ - 1;
    const int64_t run = index % runs_ * run_;
    index /= runs_;
    const int64_t row = index % row_groups_ * rows_;
    index /= row_groups_;
    const int64_t n = std::min(run_, extents_[last] - run);
    const int64_t rows = std::min(rows_, extents_[last - 1] - row);
    int64_t offsets[kMaxOperands];
    for (int k = 0; k < operands_.size; ++k) {
      offsets[k] = run * strides_[last][k] + row * strides_[last - 1][k];
    }
    for (int dim = last - 2; dim >= 0 && index > 0; --dim) {
      const int64_t at = index % extents_[dim];
      index /= extents_[dim];
      for (int k = 0; k < operands_.size; ++k) offsets[k] += at * strides_[dim][k];
    }
    char* data[kMaxOperands];
    for (int k = 0; k < operands_.size; ++k) {
      data[k] = operands_.data[k] + offsets[k] * operands_.item[k];
    }
    if (!all_unit_) return RunGathered(data, rows, n, fn);
    for (int64_t i = 0; i < rows; ++i) {
      fn(data, n);
      for (int k = 0; k < operands_.size; ++k) {
        data[k] += strides_[last - 1][k] * operands_.item[k];
      }
    }
  }

  // Rows of which some operand is not contiguous.
  void RunGathered(char* const* first, int64_t rows, int64_t n, RunFn fn) const {
    const int64_t* strides = strides_[rank_ - 1];
    const int64_t* row_strides = strides_[rank_ - 2];
    alignas(64) char buffers[kMaxOperands][kGathered * sizeof(double)];
    bool is_filled[kMaxOperands] = {};
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t begin = 0; begin < n; begin += kGathered) {
        const int64_t count = std::min(kGathered, n - begin);
        char* data[kMaxOperands];
        char* at[kMaxOperands];
        for (int k = 0; k < operands_.size; ++k) {
          const int64_t item = operands_.item[k];
          at[k] = first[k] + (row * row_strides[k] + begin * strides[k]) * item;
          data[k] = strides[k] == 1 ? at[k] : buffers[k];
          if (strides[k] == 1 || k >= operands_.inputs || is_filled[k]) continue;
          CopyStrided(item, at[k], strides[k], data[k], 1, count);
          // One value for all of the block: the first run is the longest.
          is_filled[k] = strides[k] == 0 && row_strides[k] == 0;
        }
        fn(data, count);
        for (int k = operands_.inputs; k < operands_.size; ++k) {
          if (strides[k] != 1) {
            CopyStrided(operands_.item[k], data[k], 1, at[k], strides[k], count);
          }
        }
      }
    }
  }

  const LoopOperands& operands_;
  int rank_ = 0;
  int64_t extents_[Dims::kMaxRank + 2];
  int64_t strides_[Dims::kMaxRank + 2][kMaxOperands];
  int64_t run_ = 0, runs_ = 0, rows_ = 0, row_groups_ = 0, blocks_ = 0;
  bool all_unit_ = true;
};

}  // namespace

void ForTiles(ExecutionContext& context, int64_t count, int64_t tile,
              absl::FunctionRef<void(int64_t begin, int64_t end)> fn) {
  if (count <= tile) {
    if (count > 0) fn(0, count);
    return;
  }
  context.ParallelFor((count + tile - 1) / tile, [&](int64_t index) {
    fn(index * tile, std::min(count, (index + 1) * tile));
  });
}

void ForEachRun(ExecutionContext& context, std::span<const Tensor* const> inputs,
                std::span<const Tensor* const> outputs, RunFn fn) {
  const int64_t count = outputs[0]->NumElements();
  if (count == 0) return;
  const LoopOperands operands(inputs, outputs);
  bool contiguous = true;
  for (int k = 0; k < operands.size; ++k) {
    contiguous = contiguous && operands.tensors[k]->IsContiguous();
  }
  if (!contiguous) return LoopNest(operands).Run(context, fn);
  if (count <= kTileElements) return fn(operands.data, count);
  ForTiles(context, count, kTileElements, [&](int64_t begin, int64_t end) {
    char* data[kMaxOperands];
    for (int k = 0; k < operands.size; ++k) data[k] = operands.data[k] + begin * operands.item[k];
    fn(data, end - begin);
  });
}

}  // namespace shardmesh::cpu
