// SPDX-License-Identifier: Apache-2.0
//
// A sequence of modules of one type, named "0", "1", ... as in Hugging Face's checkpoints.
//
//   ModuleList<LlamaBlock> layers;
//   layers.Append(std::make_unique<LlamaBlock>(config, ...));
//   for (LlamaBlock& block : layers) x = block(x);
#ifndef SHARDMESH_NN_MODULE_LIST_H_
#define SHARDMESH_NN_MODULE_LIST_H_

#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// Owns its modules. Only a container: its owner calls the elements; calling the list is an error.
template <typename T>
class ModuleList : public Module {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = T*;
    using reference = T&;

    Iterator() = default;
    explicit Iterator(const std::unique_ptr<T>* position) : position_(position) {}
    T& operator*() const { return **position_; }
    T* operator->() const { return position_->get(); }
    Iterator& operator++() {
      ++position_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(position_++); }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const std::unique_ptr<T>* position_ = nullptr;
  };

  T& Append(std::unique_ptr<T> module) {
    RegisterChild(std::to_string(modules_.size()), *module);
    modules_.push_back(std::move(module));
    return *modules_.back();
  }

  size_t size() const { return modules_.size(); }
  T& operator[](size_t index) { return *modules_[index]; }
  Iterator begin() const { return Iterator(modules_.data()); }
  Iterator end() const { return Iterator(modules_.data() + modules_.size()); }

 protected:
  Outputs Forward(const Inputs&) override {
    Throw(absl::StatusCode::kFailedPrecondition, "the ModuleList ", FullName(),
          " has no forward: call its elements");
  }

 private:
  std::vector<std::unique_ptr<T>> modules_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_MODULE_LIST_H_
