// SPDX-License-Identifier: Apache-2.0
//
// What a sample passes to its op: positional and keyword arguments with their tensors placed on a
// mesh.
//
//   Results Narrow(const Args& args) {
//     return {Slice(args.Tensor(0), args.Int(1, "dim"), args.Int(2, "start"),
//                   args.Int(3, "length"))};
//   }
//
// An argument is looked up by its name among the keywords, then by its position. One that is not
// given, or None, takes the default; without a default it is an error.
#ifndef SHARDMESH_TESTS_OPINFO_ARGS_H_
#define SHARDMESH_TESTS_OPINFO_ARGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/tests/opinfo/opinfo_case.h"

namespace shardmesh::testing {

/// Refers to the sample, which must outlive it.
class Args {
 public:
  /// `real` is the dtype that stands for the sample's f64; `placements` are for what an op without
  /// tensors creates.
  Args(const DeviceMesh& mesh, DType real, const OpinfoCase& sample,
       std::map<std::string, DTensor> tensors, std::vector<Placement> placements)
      : mesh_(mesh),
        real_(real),
        sample_(sample),
        tensors_(std::move(tensors)),
        placements_(std::move(placements)) {}

  const DeviceMesh& mesh() const { return mesh_; }
  DType real() const { return real_; }
  const std::vector<Placement>& placements() const { return placements_; }
  const std::string& id() const { return sample_.id; }
  /// Number of positional arguments.
  int size() const;

  /// Whether the argument is given, and is not None.
  bool Has(int position, const char* name = "") const { return Find(position, name) != nullptr; }
  bool IsTensor(int position, const char* name = "") const;
  bool IsList(int position, const char* name = "") const;

  /// No tensor if it is not given.
  DTensor Tensor(int position, const char* name = "") const;
  /// Of a list; of a single tensor, that one.
  std::vector<DTensor> Tensors(int position, const char* name = "") const;
  double Number(int position, const char* name, std::optional<double> otherwise = {}) const;
  int64_t Int(int position, const char* name, std::optional<int64_t> otherwise = {}) const;
  int Dim(int position, const char* name, std::optional<int64_t> otherwise = {}) const {
    return static_cast<int>(Int(position, name, otherwise));
  }
  bool Flag(int position, const char* name, std::optional<bool> otherwise = {}) const;
  std::string Text(int position, const char* name, std::optional<std::string> otherwise = {}) const;
  /// Of a list; of a single integer, that one; nothing if it is not given. A tensor of integers
  /// (the same on all ranks) counts as a list.
  std::vector<int64_t> Ints(int position, const char* name) const;
  std::vector<int> DimList(int position, const char* name) const;
  /// A list of lists.
  std::vector<std::vector<int>> DimLists(int position, const char* name) const;
  Dims Shape(int position, const char* name) const;
  /// float64 is real().
  DType Type(int position, const char* name, DType otherwise) const;
  /// The argument as it is written; null if it is not given.
  const nlohmann::json* Find(int position, const char* name) const;

 private:
  const nlohmann::json& At(int position, const char* name) const;
  DTensor TensorOf(const nlohmann::json& json) const;

  const DeviceMesh& mesh_;
  DType real_;
  const OpinfoCase& sample_;
  std::map<std::string, DTensor> tensors_;
  std::vector<Placement> placements_;
};

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_OPINFO_ARGS_H_
