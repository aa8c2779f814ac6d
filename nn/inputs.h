// SPDX-License-Identifier: Apache-2.0
//
// What a module is called with, and what it returns.
//
//   Outputs Attend::Forward(const Inputs& x) {
//     auto* cache = x.ArgumentOr<KvCache*>("cache", nullptr);   // not a tensor
//     const DTensor mask = x.Optional(1);                       // no tensor if it was not passed
//     ...
//     return {y, scores};
//   }
//   Outputs results = attend.Call(Inputs{x, mask}.With("cache", &cache));
#ifndef SHARDMESH_NN_INPUTS_H_
#define SHARDMESH_NN_INPUTS_H_

#include <any>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::nn {

class Module;

/// Tensors by position, anything else by name. Errors are Error(kInvalidArgument) naming the
/// module.
class Inputs : public absl::InlinedVector<DTensor, 2> {
 public:
  using absl::InlinedVector<DTensor, 2>::InlinedVector;

  /// Throws if fewer were passed.
  const DTensor& operator[](size_t i) const {
    if (i >= size()) ThrowMissing(i);
    return absl::InlinedVector<DTensor, 2>::operator[](i);
  }
  DTensor& operator[](size_t i) {
    if (i >= size()) ThrowMissing(i);
    return absl::InlinedVector<DTensor, 2>::operator[](i);
  }
  /// No tensor if fewer were passed.
  DTensor Optional(size_t i) const { return i < size() ? (*this)[i] : DTensor(); }

  /// Adds an argument that is not a tensor, of any copyable type. Forward, or a hook, must read it:
  /// a name that nothing reads is an error of the call, as it may be misspelt.
  template <typename T>
  Inputs&& With(std::string name, T value) && {
    Add(std::move(name), std::move(value));
    return std::move(*this);
  }
  /// Throws if no argument of this name was passed, or if it is of another type.
  template <typename T>
  const T& Argument(std::string_view name) const {
    const T* value = Find<T>(name);
    if (value == nullptr) ThrowNoArgument(name);
    return *value;
  }
  /// Throws if an argument of this name is of another type.
  template <typename T>
  T ArgumentOr(std::string_view name, T otherwise) const {
    const T* value = Find<T>(name);
    return value == nullptr ? std::move(otherwise) : *value;
  }

 private:
  friend class Module;
  struct Named {
    std::string name;
    std::any value;
    mutable bool is_read = false;
  };
  void Add(std::string name, std::any value);
  template <typename T>
  const T* Find(std::string_view name) const {
    const Named* named = FindNamed(name, typeid(T));
    return named == nullptr ? nullptr : std::any_cast<T>(&named->value);
  }
  const Named* FindNamed(std::string_view name, const std::type_info& type) const;
  std::string Callee() const;
  [[noreturn]] void ThrowMissing(size_t i) const;
  [[noreturn]] void ThrowNoArgument(std::string_view name) const;
  void CheckAllRead() const;

  std::vector<Named> named_;
  const Module* module_ = nullptr;  // The one that was called.
};

/// The results of a module, in order.
class Outputs : public absl::InlinedVector<DTensor, 1> {
 public:
  Outputs() = default;
  Outputs(DTensor only) { push_back(std::move(only)); }  // NOLINT(google-explicit-constructor)
  Outputs(std::initializer_list<DTensor> results) : absl::InlinedVector<DTensor, 1>(results) {}
  explicit Outputs(const std::vector<DTensor>& results)
      : absl::InlinedVector<DTensor, 1>(results.begin(), results.end()) {}

  /// Throws Error(kInvalidArgument) if there are fewer.
  const DTensor& operator[](size_t i) const {
    if (i >= size()) ThrowMissing(i);
    return absl::InlinedVector<DTensor, 1>::operator[](i);
  }
  DTensor& operator[](size_t i) {
    if (i >= size()) ThrowMissing(i);
    return absl::InlinedVector<DTensor, 1>::operator[](i);
  }

 private:
  [[noreturn]] void ThrowMissing(size_t i) const;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_INPUTS_H_
