// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/opinfo/args.h"

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "shardmesh/base/error.h"

namespace shardmesh::testing {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kTensorPrefix = "tensor:";

bool NamesTensor(const Json& json) {
  return json.is_string() && absl::StartsWith(json.get<std::string>(), std::string(kTensorPrefix));
}

double NumberOf(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  if (!json.is_string()) return json.get<double>();
  const std::string text = json;
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "nan") return std::nan("");
  ThrowInvalid("\"", text, "\" is not a number");
}

}  // namespace

int Args::size() const { return static_cast<int>(sample_.args->size()); }

const Json* Args::Find(int position, const char* name) const {
  const auto keyword = sample_.kwargs->find(name);
  const Json* found = keyword != sample_.kwargs->end()     ? &*keyword
                      : position >= 0 && position < size() ? &(*sample_.args)[position]
                                                           : nullptr;
  return found == nullptr || found->is_null() ? nullptr : found;
}

const Json& Args::At(int position, const char* name) const {
  const Json* found = Find(position, name);
  if (found == nullptr) ThrowInvalid(sample_.id, " has no argument ", position, " \"", name, "\"");
  return *found;
}

DTensor Args::TensorOf(const Json& json) const {
  return tensors_.at(json.get<std::string>().substr(kTensorPrefix.size()));
}

bool Args::IsTensor(int position, const char* name) const {
  const Json* found = Find(position, name);
  return found != nullptr && NamesTensor(*found);
}

bool Args::IsList(int position, const char* name) const {
  const Json* found = Find(position, name);
  return found != nullptr && found->is_array();
}

DTensor Args::Tensor(int position, const char* name) const {
  const Json* found = Find(position, name);
  return found == nullptr ? DTensor() : TensorOf(*found);
}

std::vector<DTensor> Args::Tensors(int position, const char* name) const {
  const Json& json = At(position, name);
  if (!json.is_array()) return {TensorOf(json)};
  std::vector<DTensor> tensors;
  for (const Json& element : json) tensors.push_back(TensorOf(element));
  return tensors;
}

double Args::Number(int position, const char* name, std::optional<double> otherwise) const {
  if (otherwise && !Has(position, name)) return *otherwise;
  return NumberOf(At(position, name));
}

int64_t Args::Int(int position, const char* name, std::optional<int64_t> otherwise) const {
  if (otherwise && !Has(position, name)) return *otherwise;
  return At(position, name).get<int64_t>();
}

bool Args::Flag(int position, const char* name, std::optional<bool> otherwise) const {
  if (otherwise && !Has(position, name)) return *otherwise;
  return At(position, name).get<bool>();
}

std::string Args::Text(int position, const char* name, std::optional<std::string> otherwise) const {
  if (otherwise && !Has(position, name)) return *otherwise;
  return At(position, name).get<std::string>();
}

std::vector<int64_t> Args::Ints(int position, const char* name) const {
  const Json* found = Find(position, name);
  if (found == nullptr) return {};
  if (NamesTensor(*found)) return FullTensor(TensorOf(*found)).ToVector<int64_t>();
  if (found->is_array()) return found->get<std::vector<int64_t>>();
  return {found->get<int64_t>()};
}

std::vector<int> Args::DimList(int position, const char* name) const {
  const std::vector<int64_t> ints = Ints(position, name);
  return std::vector<int>(ints.begin(), ints.end());
}

std::vector<std::vector<int>> Args::DimLists(int position, const char* name) const {
  return At(position, name).get<std::vector<std::vector<int>>>();
}

Dims Args::Shape(int position, const char* name) const {
  return Dims(std::span<const int64_t>(Ints(position, name)));
}

DType Args::Type(int position, const char* name, DType otherwise) const {
  if (!Has(position, name)) return otherwise;
  const std::string text = Text(position, name);
  if (text == "torch.float64") return real_;
  if (text == "torch.float32") return DType::kF32;
  if (text == "torch.int64") return DType::kI64;
  if (text == "torch.int32") return DType::kI32;
  if (text == "torch.bool") return DType::kBool;
  ThrowInvalid(sample_.id, ": unknown dtype ", text);
}

}  // namespace shardmesh::testing
