// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/inputs.h"

#include "shardmesh/base/error.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/nn/type_name.h"

namespace shardmesh::nn {

void Inputs::Add(std::string name, std::any value) {
  for (const Named& named : named_) {
    if (named.name == name) ThrowInvalid("Inputs: argument ", Quoted(name), " is given twice");
  }
  named_.push_back({std::move(name), std::move(value)});
}

const Inputs::Named* Inputs::FindNamed(std::string_view name, const std::type_info& type) const {
  for (const Named& named : named_) {
    if (named.name != name) continue;
    if (named.value.type() != type) {
      ThrowInvalid(Callee(), " was called with argument ", Quoted(name), " of type ",
                   TypeName(named.value.type()), ", and reads it as ", TypeName(type));
    }
    named.is_read = true;
    return &named;
  }
  return nullptr;
}

std::string Inputs::Callee() const {
  const std::string name = module_ == nullptr ? "" : module_->FullName();
  return name.empty() ? "the module" : "module " + name;
}

void Inputs::ThrowMissing(size_t i) const {
  ThrowInvalid(Callee(), " was called with ", size(), size() == 1 ? " input" : " inputs",
               ", and reads input ", i, " (counted from 0)");
}

void Inputs::ThrowNoArgument(std::string_view name) const {
  ThrowInvalid(Callee(), " reads argument ", Quoted(name),
               ", which was not passed: Inputs{x}.With(name, value)");
}

void Inputs::CheckAllRead() const {
  for (const Named& named : named_) {
    if (named.is_read) continue;
    ThrowInvalid(Callee(), " was called with argument ", Quoted(named.name),
                 ", which neither it nor a hook has read");
  }
}

void Outputs::ThrowMissing(size_t i) const {
  ThrowInvalid("result ", i, " (counted from 0) was read of a module that has returned ", size());
}

}  // namespace shardmesh::nn
