// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/load.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/listed.h"
#include "shardmesh/nn/state.h"

namespace shardmesh::nn {
namespace {

using shardmesh::internal::Listed;

/// A name of the checkpoint, which may be any bytes.
std::string Shown(const std::string& name) { return Quoted(name, /*max_chars=*/100); }

/// Where the values of a parameter are.
struct Source {
  Parameter parameter;
  /// In the checkpoint: one, or several of a tied parameter.
  std::vector<std::string> names;
};

class Matcher {
 public:
  Matcher(const Module& model, const CheckpointReader& checkpoint, const LoadOptions& options)
      : checkpoint_(checkpoint), options_(options) {
    auto names = AllNames(model);
    for (const auto& [name, parameter] : model.NamedParameters()) {
      Match(name, parameter, names[parameter.id()]);
    }
    for (const auto& [name, buffer, is_persistent] : model.NamedBuffers()) {
      if (is_persistent) Match(name, buffer, names[buffer.id()]);
    }
  }

  const std::vector<Source>& sources() const { return sources_; }

  absl::Status Check() const {
    std::vector<std::string> unexpected;
    for (const std::string& name : checkpoint_.Names()) {
      if (!known_.contains(name)) unexpected.push_back(Shown(name));
    }
    std::string problem;
    if (!missing_.empty()) absl::StrAppend(&problem, "; missing", Listed(missing_));
    if (!unexpected.empty() && !options_.allow_unexpected) {
      absl::StrAppend(&problem, "; not expected", Listed(unexpected));
    }
    if (!misshapen_.empty()) absl::StrAppend(&problem, "; of another shape", Listed(misshapen_));
    if (!other_dtype_.empty()) {
      absl::StrAppend(&problem, "; of another dtype", Listed(other_dtype_),
                      " (LoadOptions::allow_cast converts)");
    }
    if (!unreadable_.empty()) {
      absl::StrAppend(&problem, "; of a dtype that cannot be read", Listed(unreadable_));
    }
    if (problem.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(checkpoint_.path()), " does not fit the model", problem));
  }

 private:
  void Match(const std::string& first_name, const Parameter& parameter,
             const std::vector<std::string>& names) {
    known_.insert(names.begin(), names.end());
    Source source = {parameter, {}};
    for (const std::string& name : names) {
      const StoredTensor* stored = checkpoint_.Find(name);
      if (stored == nullptr) continue;
      Compare(*stored, parameter);
      source.names.push_back(name);
    }
    if (source.names.empty()) missing_.push_back(Shown(first_name));
    sources_.push_back(std::move(source));
  }

  void Compare(const StoredTensor& stored, const Parameter& parameter) {
    const std::string is = absl::StrCat(Shown(stored.name), " is ", stored.ToString());
    if (!std::equal(stored.shape.begin(), stored.shape.end(), parameter.shape().begin(),
                    parameter.shape().end())) {
      misshapen_.push_back(absl::StrCat(is, ", expected ", parameter.shape().ToString()));
    } else if (!stored.dtype) {
      unreadable_.push_back(is);
    } else if (*stored.dtype != parameter.dtype() && !options_.allow_cast) {
      other_dtype_.push_back(absl::StrCat(is, ", expected ", std::string(Name(parameter.dtype()))));
    }
  }

  const CheckpointReader& checkpoint_;
  const LoadOptions& options_;
  std::vector<Source> sources_;
  std::unordered_set<std::string> known_;
  std::vector<std::string> missing_;
  std::vector<std::string> misshapen_;
  std::vector<std::string> other_dtype_;
  std::vector<std::string> unreadable_;
};

/// Cuts `box` into boxes of at most `limit` elements, each of them contiguous in its row-major
/// order, and calls fn(piece) in this order while it returns OkStatus.
template <typename Fn>
absl::Status ForEachPiece(const Box& box, int64_t limit, const Fn& fn) {
  const Dims extents = box.Extents();
  if (box.IsEmpty()) return absl::OkStatus();
  if (extents.size() == 0) return fn(box);
  // Dims below `cut` have extent 1 in a piece, those above it their whole extent.
  int cut = extents.size() - 1;
  int64_t above = 1;
  while (cut > 0 && above * extents[cut] <= limit) above *= extents[cut--];
  const int64_t step = std::max<int64_t>(limit / above, 1);
  Box piece = box;
  for (int d = 0; d < cut; ++d) piece.end[d] = box.begin[d] + 1;
  while (true) {
    for (int64_t begin = box.begin[cut]; begin < box.end[cut]; begin += step) {
      piece.begin[cut] = begin;
      piece.end[cut] = std::min(begin + step, box.end[cut]);
      SHARDMESH_RETURN_IF_ERROR(fn(piece));
    }
    int d = cut - 1;
    for (; d >= 0 && piece.end[d] == box.end[d]; --d) {
      piece.begin[d] = box.begin[d];
      piece.end[d] = box.begin[d] + 1;
    }
    if (d < 0) return absl::OkStatus();
    ++piece.begin[d];
    ++piece.end[d];
  }
}

/// Element `index` (row-major), with enough digits to tell it from its neighbours.
std::string ElementText(const Tensor& contiguous, int64_t index) {
  const Tensor flat = *contiguous.TryView({contiguous.NumElements()});
  return absl::StrFormat("%.17g", flat.Narrow(0, index, 1).ToVector<double>()[0]);
}

/// "[3,7]": where element `index` of a row-major `box` is in the whole tensor.
std::string Position(const Box& box, int64_t index) {
  Dims position = box.begin;
  for (int d = position.size() - 1; d >= 0; --d) {
    const int64_t extent = box.end[d] - box.begin[d];
    position[d] += index % extent;
    index /= extent;
  }
  return position.ToString();
}

class Loader {
 public:
  Loader(const CheckpointReader& checkpoint, const LoadOptions& options)
      : checkpoint_(checkpoint), options_{.allow_cast = options.allow_cast} {}

  absl::Status Load(Source source) const {
    Parameter& parameter = source.parameter;
    const DeviceMesh& mesh = parameter.mesh();
    const Box box = parameter.layout().LocalBox(mesh.coord());
    const bool in_place = parameter.IsMaterialized();  // Others may hold this tensor.
    Tensor local = in_place ? parameter.data().local()
                            : Tensor::Empty(mesh.context(), box.Extents(), parameter.dtype(),
                                            MemoryCategory::kParameters);
    SHARDMESH_RETURN_IF_ERROR(checkpoint_.ReadBox(source.names[0], box, local, options_));
    for (size_t i = 1; i < source.names.size(); ++i) {
      SHARDMESH_RETURN_IF_ERROR(CompareTied(source, source.names[i], box, local));
    }
    if (!in_place) parameter.SetData(DTensor(mesh, parameter.layout(), std::move(local)));
    return absl::OkStatus();
  }

 private:
  /// `local` holds `box` of the tensor source.names[0]; `other` must hold the same.
  absl::Status CompareTied(const Source& source, const std::string& other, const Box& box,
                           const Tensor& local) const {
    constexpr int64_t kMaxBytes = 1 << 20;
    const int64_t element_bytes = SizeOf(local.dtype());
    const auto* expected = static_cast<const char*>(local.raw_data());
    int64_t done = 0;  // Elements.
    return ForEachPiece(box, kMaxBytes / element_bytes, [&](const Box& piece) {
      Tensor read = Tensor::Empty(source.parameter.mesh().context(), piece.Extents(), local.dtype(),
                                  MemoryCategory::kScratch);
      SHARDMESH_RETURN_IF_ERROR(checkpoint_.ReadBox(other, piece, read, options_));
      const auto* found = static_cast<const char*>(read.raw_data());
      const auto* end = found + read.NumElements() * element_bytes;
      const auto* differs = std::mismatch(found, end, expected + done * element_bytes).first;
      if (differs == end) {
        done += read.NumElements();
        return absl::OkStatus();
      }
      const int64_t index = (differs - found) / element_bytes;
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(checkpoint_.path()), ": tensors ", Shown(source.names[0]), " and ",
                       Shown(other), " are one parameter of the model, but differ: element ",
                       Position(piece, index), " is ", ElementText(local, done + index),
                       " in the first and ", ElementText(read, index), " in the second"));
    });
  }

  const CheckpointReader& checkpoint_;
  ReadOptions options_;
};

}  // namespace

absl::Status LoadParameters(Module& model, const CheckpointReader& checkpoint,
                            const LoadOptions& options) {
  for (const Parameter& parameter : model.Parameters()) {
    if (parameter.IsPlaced()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "LoadParameters: parameter ", parameter.ToString(),
          " has no mesh yet: call Parallelize, FullyShard or PlaceReplicated first");
  }
  model.PlaceBuffers();
  const Matcher matcher(model, checkpoint, options);
  SHARDMESH_RETURN_IF_ERROR(matcher.Check());
  const Loader loader(checkpoint, options);
  for (const Source& source : matcher.sources()) {
    SHARDMESH_RETURN_IF_ERROR(loader.Load(source));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::nn
