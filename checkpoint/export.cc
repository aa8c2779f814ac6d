// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/export.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/agreement.h"
#include "shardmesh/checkpoint/internal/box_runs.h"
#include "shardmesh/checkpoint/internal/box_slabs.h"
#include "shardmesh/checkpoint/internal/file_writer.h"
#include "shardmesh/checkpoint/internal/new_directory.h"
#include "shardmesh/checkpoint/internal/share.h"
#include "shardmesh/checkpoint/internal/state_tensors.h"
#include "shardmesh/checkpoint/internal/weight_files.h"
#include "shardmesh/checkpoint/safetensors_writer.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::checkpoint {
namespace {

using internal::Agree;
using internal::kWeightsIndex;
using internal::StateTensor;
using internal::WeightFile;
using shardmesh::internal::BoxRuns;
using shardmesh::internal::SlabsOf;

// What is converted at a time.
constexpr int64_t kConvertedElements = 256 * 1024;

// Writes the bytes of a box, given in row-major order, to where they belong in a whole tensor.
class RunWriter {
 public:
  // The tensor, `region` of a larger one, begins at byte `begin` of the file.
  RunWriter(const Box& region, const Box& box, int64_t begin, int64_t element_bytes,
            internal::FileWriter& writer)
      : runs_(region.Extents(), Relative(box, region)),
        begin_(begin),
        element_bytes_(element_bytes),
        writer_(writer) {}

  absl::Status Add(const char* bytes, int64_t count) {
    while (count > 0) {
      if (left_ == 0) {
        SHARDMESH_RETURN_IF_ERROR(writer_.SeekTo(begin_ + *runs_.Next() * element_bytes_));
        left_ = runs_.run_elements() * element_bytes_;
      }
      const int64_t now = std::min(left_, count);
      SHARDMESH_RETURN_IF_ERROR(writer_.Add(bytes, now));
      bytes += now;
      count -= now;
      left_ -= now;
    }
    return absl::OkStatus();
  }

 private:
  BoxRuns runs_;  // In the file.
  int64_t begin_, element_bytes_;
  internal::FileWriter& writer_;
  int64_t left_ = 0;  // Bytes of the run that has begun.
};

class Exporter {
 public:
  Exporter(std::string directory, const StateDict& state, const ExportOptions& options)
      : state_(state),
        options_(options),
        ranks_(options.save.ranks != nullptr ? options.save.ranks : internal::RanksOf(state)),
        directory_(std::move(directory), ranks_,
                   options.save.files != nullptr ? *options.save.files : SystemFiles(),
                   options.save.overwrite, options.save.sync) {}

  absl::Status Run() {
    SHARDMESH_RETURN_IF_ERROR(Agree(ranks_, Plan()));
    SHARDMESH_RETURN_IF_ERROR(directory_.Begin());
    // Each file has its length before any rank writes into it.
    absl::Status status = Agree(ranks_, Create());
    if (status.ok()) status = Agree(ranks_, WriteAll());
    return directory_.End(status);
  }

 private:
  DType SavedDType(const StateTensor& tensor) const {
    return options_.dtype && IsFloating(tensor.dtype) ? *options_.dtype : tensor.dtype;
  }

  // The same on all ranks: it needs only shapes and dtypes.
  absl::Status Plan() {
    if (options_.dtype && !IsFloating(*options_.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("ExportHuggingFace: dtype ",
                                                     std::string(Name(*options_.dtype)),
                                                     " is not floating-point"));
    }
    SHARDMESH_ASSIGN_OR_RETURN(tensors_, internal::TensorsOf(state_));
    internal::ShareMaker shares;
    for (const StateTensor& tensor : tensors_) {
      to_write_.push_back({tensor.name, SavedDType(tensor), tensor.region.Extents()});
      std::optional<Box> share;
      if (tensor.layout) {
        share =
            shares.Next(tensor.layout, tensor.mesh.coord(), SizeOf(tensor.dtype), tensor.region);
      } else if (directory_.is_first_rank()) {
        share = tensor.region;
      }
      shares_.push_back(share);
    }
    std::map<std::string, std::string> metadata = options_.save.metadata;
    metadata.emplace("format", "pt");  // What transformers asks for.
    SHARDMESH_ASSIGN_OR_RETURN(
        files_, internal::PlanWeightFiles(to_write_, options_.max_file_bytes, metadata));
    return CheckTexts();
  }

  absl::Status CheckTexts() const {
    std::set<std::string> taken = {kWeightsIndex};
    for (const WeightFile& file : files_) taken.insert(file.name);
    for (const auto& [name, text] : options_.texts) {
      if (taken.count(name) == 0 && !name.empty() && name.find('/') == std::string::npos) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("ExportHuggingFace: ", Quoted(name), " is no name for a further file"));
    }
    return absl::OkStatus();
  }

  // By the first rank: all files, with their headers.
  absl::Status Create() const {
    if (!directory_.is_first_rank()) return absl::OkStatus();
    for (const WeightFile& file : files_) {
      SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> out,
                                 directory_.files().CreateFile(directory_.FilePath(file.name)));
      SHARDMESH_RETURN_IF_ERROR(out->Resize(file.plan.file_bytes));
      SHARDMESH_RETURN_IF_ERROR(
          out->WriteAt(0, file.plan.header.data(), static_cast<int64_t>(file.plan.header.size())));
      SHARDMESH_RETURN_IF_ERROR(out->Close());
    }
    if (files_.size() > 1) {
      SHARDMESH_RETURN_IF_ERROR(
          directory_.WriteText(kWeightsIndex, internal::WeightsIndex(to_write_, files_)));
    }
    for (const auto& [name, text] : options_.texts)
      SHARDMESH_RETURN_IF_ERROR(directory_.WriteText(name, text));
    return absl::OkStatus();
  }

  absl::Status WriteAll() const {
    for (const WeightFile& file : files_) SHARDMESH_RETURN_IF_ERROR(Write(file));
    return absl::OkStatus();
  }

  // This rank's boxes of one file. Local. The first rank syncs what it has created, too.
  absl::Status Write(const WeightFile& file) const {
    const bool has_any = std::any_of(file.tensors.begin(), file.tensors.end(), [&](size_t i) {
      return shares_[i] && !shares_[i]->IsEmpty();
    });
    if (!has_any && !directory_.is_first_rank()) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> out,
                               directory_.files().OpenFile(directory_.FilePath(file.name)));
    internal::FileWriter writer(*out, 0);
    for (size_t k = 0; k < file.tensors.size(); ++k) {
      const size_t i = file.tensors[k];
      if (!shares_[i] || shares_[i]->IsEmpty()) continue;
      SHARDMESH_RETURN_IF_ERROR(WriteBox(tensors_[i], *shares_[i], file.plan.begin[k], writer));
    }
    SHARDMESH_RETURN_IF_ERROR(writer.Flush());
    if (options_.save.sync) SHARDMESH_RETURN_IF_ERROR(out->Sync());
    return out->Close();
  }

  absl::Status WriteBox(const StateTensor& tensor, const Box& box, int64_t begin,
                        internal::FileWriter& writer) const {
    const DType dtype = SavedDType(tensor);
    const int64_t element_bytes = SizeOf(dtype);
    RunWriter runs(tensor.region, box, begin, element_bytes, writer);
    const Box in_local = Relative(box, tensor.local_box);
    if (dtype != tensor.dtype) return WriteConverted(tensor.local, in_local, dtype, runs);
    BoxRuns of_local(tensor.local.shape(), in_local);
    const auto* const data = static_cast<const char*>(tensor.local.raw_data());
    while (const std::optional<int64_t> first = of_local.Next()) {
      SHARDMESH_RETURN_IF_ERROR(
          runs.Add(data + *first * element_bytes, of_local.run_elements() * element_bytes));
    }
    return absl::OkStatus();
  }

  // Through a buffer: a whole copy may not fit.
  static absl::Status WriteConverted(const Tensor& local, const Box& box, DType dtype,
                                     RunWriter& runs) {
    ExecutionContext context;
    for (const Box& slab : SlabsOf(box, kConvertedElements)) {
      Tensor source = local;
      for (int d = 0; d < slab.num_dims(); ++d)
        source = source.Narrow(d, slab.begin[d], slab.end[d] - slab.begin[d]);
      Tensor converted = Tensor::Empty(context, slab.Extents(), dtype);
      ops::Copy(context, source, converted);
      SHARDMESH_RETURN_IF_ERROR(
          runs.Add(static_cast<const char*>(converted.raw_data()), converted.Bytes()));
    }
    return absl::OkStatus();
  }

  const StateDict& state_;
  const ExportOptions& options_;
  Communicator* ranks_;
  internal::NewDirectory directory_;
  std::vector<StateTensor> tensors_;
  std::vector<std::optional<Box>> shares_;  // Of each tensor, what this rank writes.
  std::vector<TensorToWrite> to_write_;
  std::vector<WeightFile> files_;
};

}  // namespace

absl::Status ExportHuggingFace(const std::string& directory, const StateDict& state,
                               const ExportOptions& options) {
  return Exporter(directory, state, options).Run();
}

}  // namespace shardmesh::checkpoint
