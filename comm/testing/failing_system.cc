// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/testing/failing_system.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <cstdlib>
#include <new>

namespace shardmesh::testing {

thread_local int threads_left = kUnlimited;
thread_local int blocks_left = kUnlimited;
thread_local int news_left = kUnlimited;
std::atomic<int> failed_blocks = 0;

namespace {

// Once a call has failed, all later ones do.
bool Fails(int& left) {
  if (left == 0) return true;
  if (left > 0) --left;
  return false;
}

template <typename Function>
Function SystemsOwn(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace shardmesh::testing

using shardmesh::testing::Fails;
using shardmesh::testing::SystemsOwn;

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  static const auto create = SystemsOwn<decltype(&pthread_create)>("pthread_create");
  if (Fails(shardmesh::testing::threads_left)) return EAGAIN;
  return create(thread, attributes, start, argument);
}

extern "C" void* aligned_alloc(size_t alignment, size_t size) noexcept {
  static const auto allocate = SystemsOwn<decltype(&aligned_alloc)>("aligned_alloc");
  if (Fails(shardmesh::testing::blocks_left)) {
    ++shardmesh::testing::failed_blocks;
    return nullptr;
  }
  return allocate(alignment, size);
}

void* operator new(size_t size) {
  while (true) {
    void* const block =
        Fails(shardmesh::testing::news_left) ? nullptr : std::malloc(size > 0 ? size : 1);
    if (block != nullptr) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
// std::stable_sort asks for its buffer so, and does without.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return Fails(shardmesh::testing::news_left) ? nullptr : std::malloc(size > 0 ? size : 1);
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
