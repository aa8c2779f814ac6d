// SPDX-License-Identifier: Apache-2.0
//
// One sample of PyTorch's operator tests, with PyTorch's results and gradients
// (tests/testdata/golden/README.md, "opinfo").
//
//   for (const OpinfoCase& sample : OpinfoCases()) sample.tensors.at("in0");
#ifndef SHARDMESH_TESTS_OPINFO_OPINFO_CASE_H_
#define SHARDMESH_TESTS_OPINFO_OPINFO_CASE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {

struct OpinfoCase {
  std::string id;  ///< "<op>/<number>".
  std::string op;
  /// As passed: a list and an object; "tensor:in0" stands for tensor "in0". Pointers, as the whole
  /// of the JSON library would take most of the time to compile an op family.
  std::shared_ptr<const nlohmann::json> args, kwargs;
  int outputs = 0;
  std::vector<std::string> differentiable;  ///< The inputs that have an expected gradient.
  /// "in<n>", "out<k>", "grad_out<k>" (given), "grad_in<n>" (expected).
  std::map<std::string, GlobalValue> tensors;
  /// A tensor has a dtype that the library does not have (u8), and is not in `tensors`.
  bool has_unknown_dtype = false;

  /// Names of the tensors that are passed, in order.
  std::vector<std::string> Inputs() const;
};

/// All of them, read once.
const std::vector<OpinfoCase>& OpinfoCases();

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_OPINFO_OPINFO_CASE_H_
