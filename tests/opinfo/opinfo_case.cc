// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/opinfo/opinfo_case.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shardmesh/checkpoint/safetensors_file.h"

namespace shardmesh::testing {
namespace {

using Json = nlohmann::json;

constexpr char kFolder[] = "tests/testdata/golden/opinfo/";

std::vector<OpinfoCase> ReadCases() {
  std::ifstream stream(absl::StrCat(kFolder, "cases.json"));
  const auto file = SafetensorsFile::Open(absl::StrCat(kFolder, "tensors.safetensors"));
  EXPECT_TRUE(file.ok()) << file.status();
  std::vector<OpinfoCase> cases;
  std::map<std::string, size_t> index;
  for (const Json& json : Json::parse(stream)) {
    OpinfoCase sample;
    sample.id = json.at("id");
    sample.op = json.at("op");
    sample.args = std::make_shared<const Json>(json.at("args"));
    sample.kwargs = std::make_shared<const Json>(json.value("kwargs", Json::object()));
    sample.outputs = json.at("outputs");
    sample.differentiable = json.at("differentiable").get<std::vector<std::string>>();
    index[sample.id] = cases.size();
    cases.push_back(std::move(sample));
  }
  ExecutionContext context;
  for (const StoredTensor& stored : file->tensors()) {
    const size_t slash = stored.name.rfind('/');
    OpinfoCase& sample = cases[index.at(stored.name.substr(0, slash))];
    if (!stored.dtype) {
      sample.has_unknown_dtype = true;
      continue;
    }
    Tensor tensor =
        Tensor::Empty(context, Dims(std::span<const int64_t>(stored.shape)), *stored.dtype);
    EXPECT_TRUE(file->Read(stored.name, tensor).ok()) << stored.name;
    sample.tensors[stored.name.substr(slash + 1)] = GlobalOf(tensor);
  }
  return cases;
}

}  // namespace

std::vector<std::string> OpinfoCase::Inputs() const {
  std::vector<std::string> names;
  for (size_t n = 0;; ++n) {
    std::string name = absl::StrCat("in", n);
    if (tensors.count(name) == 0) return names;
    names.push_back(std::move(name));
  }
}

const std::vector<OpinfoCase>& OpinfoCases() {
  static const auto* cases = new std::vector<OpinfoCase>(ReadCases());
  return *cases;
}

}  // namespace shardmesh::testing
