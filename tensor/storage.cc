// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/storage.h"

#include <utility>

#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"

namespace shardmesh {

Storage::Storage(Device device, int64_t bytes, std::shared_ptr<Allocator> allocator,
                 MemoryCategory category)
    : bytes_(bytes), device_(device), category_(category), allocator_(std::move(allocator)) {
  if (device.IsMeta()) {
    state_ = State::kMeta;
  } else {
    data_ = allocator_->Allocate(bytes, category);
  }
}

Storage::~Storage() {
  if (data_ != nullptr) allocator_->Free(data_, bytes_, category_);
}

void Storage::Release(std::string why) {
  if (state_ != State::kLive) return;
  if (data_ != nullptr) allocator_->Free(data_, bytes_, category_);
  data_ = nullptr;
  state_ = State::kReleased;
  released_by_ = std::move(why);
}

void Storage::Refill() {
  if (state_ != State::kReleased) return;
  data_ = allocator_->Allocate(bytes_, category_);
  state_ = State::kLive;
  released_by_.clear();
}

void Storage::set_category(MemoryCategory category) {
  if (data_ != nullptr) allocator_->Recategorize(bytes_, category_, category);
  category_ = category;
}

void Storage::RestoreVersion(int64_t version) {
  SHARDMESH_CHECK(version <= version_) << "a version that the storage has not had yet";
  version_ = version;
}

void Storage::ThrowNotLive() const {
  if (state_ == State::kMeta) {
    Throw(absl::StatusCode::kFailedPrecondition, "a tensor on the meta device has no elements");
  }
  Throw(absl::StatusCode::kFailedPrecondition, "the memory of this tensor (", bytes_,
        " bytes) was released: ", released_by_);
}

}  // namespace shardmesh
