// SPDX-License-Identifier: Apache-2.0
//
// The ops of the library by PyTorch's names.
//
//   void AddNormOps(OpTable& table) {
//     table.Add("softmax", [](const Args& a) { return Results{Softmax(a.Tensor(0), a.Dim(1))}; });
//   }
//
// A family is one file; what PyTorch has and the library does not is in not_there.txt.
#ifndef SHARDMESH_TESTS_OPINFO_OP_TABLE_H_
#define SHARDMESH_TESTS_OPINFO_OP_TABLE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/tests/opinfo/args.h"

namespace shardmesh::testing {

using Results = std::vector<DTensor>;

/// No results if the op does not exist with these arguments.
using OpFunction = std::function<Results(const Args& args)>;

/// Turns results that are not unique, and what is expected of them, into something that is: signs
/// of eigenvectors into those expected, indices of equal elements into the elements. Gradients are
/// taken of what it makes of the results.
using MakeUnique = std::function<void(const Args& args, Results& results, Results& expected)>;

struct OpEntry {
  OpFunction function;
  MakeUnique make_unique;  // May be empty.
};

class OpTable {
 public:
  void Add(const std::string& name, OpFunction function, MakeUnique make_unique = nullptr) {
    ops_[name] = {std::move(function), std::move(make_unique)};
  }
  /// Null if there is no such op.
  const OpEntry* Find(const std::string& name) const {
    const auto found = ops_.find(name);
    return found == ops_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::string, OpEntry> ops_;
};

/// The ops of all families.
const OpTable& TheOpTable();

// ---- families, one file each --------------------------------------------------------------------
void AddPointwiseOps(OpTable& table);
void AddProductOps(OpTable& table);
void AddReductionOps(OpTable& table);
void AddShapeOps(OpTable& table);
void AddIndexingOps(OpTable& table);
void AddNormOps(OpTable& table);
void AddLossOps(OpTable& table);
void AddConvolutionOps(OpTable& table);
void AddLinalgOps(OpTable& table);
void AddCreationOps(OpTable& table);

// ---- functions of common signatures -------------------------------------------------------------
/// f(x).
inline OpFunction Unary(DTensor (*op)(const DTensor&)) {
  return [op](const Args& args) { return Results{op(args.Tensor(0))}; };
}
/// f(a, b).
inline OpFunction Binary(DTensor (*op)(const DTensor&, const DTensor&)) {
  return [op](const Args& args) { return Results{op(args.Tensor(0), args.Tensor(1))}; };
}
/// f([a, b, ..]).
inline OpFunction OfList(DTensor (*op)(const std::vector<DTensor>&)) {
  return [op](const Args& args) { return Results{op(args.Tensors(0))}; };
}
/// f(x, dim).
inline OpFunction AlongDim(DTensor (*op)(const DTensor&, int)) {
  return [op](const Args& args) { return Results{op(args.Tensor(0), args.Dim(1, "dim"))}; };
}
/// f(x, dims, keepdim).
inline OpFunction Reduction(DTensor (*op)(const DTensor&, const std::vector<int>&, bool)) {
  return [op](const Args& args) {
    return Results{op(args.Tensor(0), args.DimList(1, "dim"), args.Flag(2, "keepdim", false))};
  };
}

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_OPINFO_OP_TABLE_H_
