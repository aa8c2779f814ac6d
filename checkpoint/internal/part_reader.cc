// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/part_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/box_runs.h"
#include "shardmesh/checkpoint/internal/box_slabs.h"
#include "shardmesh/checkpoint/internal/parallel.h"
#include "shardmesh/checkpoint/safetensors_file.h"

namespace shardmesh::checkpoint::internal {
namespace {

using shardmesh::internal::BoxRuns;
using shardmesh::internal::SlabsOf;

// What a thread reads at a time.
constexpr int64_t kBatchBytes = 4 << 20;

int64_t BytesOf(const PartToRead& part) { return part.box.NumElements() * SizeOf(part.dtype); }

// The place of the first byte in the file.
int64_t BeginOf(const PartToRead& part) {
  const Box box = Relative(part.box, part.piece->box);
  const Dims extents = part.piece->box.Extents();
  int64_t index = 0;
  for (int d = 0; d < extents.size(); ++d) index = index * extents[d] + box.begin[d];
  return part.piece->begin + index * SizeOf(*part.array->dtype);
}

// Appends the part in slabs of kBatchBytes at most.
void AppendSlabs(const PartToRead& part, std::vector<PartToRead>& slabs) {
  for (const Box& box : SlabsOf(part.box, kBatchBytes / SizeOf(part.dtype))) {
    PartToRead slab = part;
    slab.box = box;
    for (int d = 0; d < box.num_dims(); ++d) {
      slab.at.begin[d] += box.begin[d] - part.box.begin[d];
      slab.at.end[d] = slab.at.begin[d] + (box.end[d] - box.begin[d]);
    }
    slabs.push_back(slab);
  }
}

// Copies a box that has been read to where its elements belong.
void Scatter(const char* source, const PartToRead& part) {
  BoxRuns runs(part.shape, part.at);
  const int64_t element_bytes = SizeOf(part.dtype);
  const int64_t run_bytes = runs.run_elements() * element_bytes;
  while (const std::optional<int64_t> first = runs.Next()) {
    std::memcpy(part.data + *first * element_bytes, source, static_cast<size_t>(run_bytes));
    source += run_bytes;
  }
}

// Of one file, in its order.
absl::Status ReadBatch(PieceFiles& files, std::span<const PartToRead> parts, bool read_gaps) {
  const SafetensorsFile* file = nullptr;
  std::vector<BoxInMemory> boxes;
  std::vector<std::pair<const PartToRead*, std::vector<char>>> staged;
  for (const PartToRead& part : parts) {
    SHARDMESH_ASSIGN_OR_RETURN(file, files.FileOf(*part.array, *part.piece));
    BoxInMemory& box = boxes.emplace_back();
    box.name = part.array->name;
    box.box = Relative(part.box, part.piece->box);
    box.dtype = part.dtype;
    BoxRuns runs(part.shape, part.at);
    if (runs.run_elements() == part.at.NumElements()) {
      box.data = part.data + *runs.Next() * SizeOf(part.dtype);
      continue;
    }
    staged.emplace_back(&part, std::vector<char>(static_cast<size_t>(BytesOf(part))));
    box.data = staged.back().second.data();
  }
  SHARDMESH_RETURN_IF_ERROR(file->ReadBoxes(boxes, {.allow_cast = true, .read_gaps = read_gaps}));
  for (const auto& [part, bytes] : staged) Scatter(bytes.data(), *part);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadParts(PieceFiles& files, const std::vector<PartToRead>& parts,
                       const PartReadOptions& options) {
  std::vector<PartToRead> slabs;
  for (const PartToRead& part : parts) {
    AppendSlabs(part, slabs);
  }
  std::vector<std::pair<std::pair<int, int64_t>, size_t>> order;
  for (size_t i = 0; i < slabs.size(); ++i)
    order.push_back({{slabs[i].piece->file, BeginOf(slabs[i])}, i});
  std::sort(order.begin(), order.end());
  std::vector<PartToRead> sorted;
  std::vector<size_t> ends;  // Of batches.
  int64_t bytes = 0;
  for (const auto& [place, i] : order) {
    const bool is_new = sorted.empty() || place.first != sorted.back().piece->file ||
                        bytes + BytesOf(slabs[i]) > kBatchBytes;
    if (is_new && !sorted.empty()) ends.push_back(sorted.size());
    bytes = (is_new ? 0 : bytes) + BytesOf(slabs[i]);
    sorted.push_back(slabs[i]);
  }
  ends.push_back(sorted.size());
  if (sorted.empty()) return absl::OkStatus();
  return ForEachInParallel(ends.size(), options.threads, [&](size_t batch) {
    const size_t begin = batch == 0 ? 0 : ends[batch - 1];
    return ReadBatch(files, std::span(sorted).subspan(begin, ends[batch] - begin),
                     options.read_gaps);
  });
}

}  // namespace shardmesh::checkpoint::internal
