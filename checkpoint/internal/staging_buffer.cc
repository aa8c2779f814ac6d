// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/staging_buffer.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace shardmesh::checkpoint::internal {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr auto kAlignment = static_cast<std::align_val_t>(kHugePage);
// Fewer bytes may be in the caches afterwards, and often are no whole lines.
constexpr int64_t kManyBytes = 64 * 1024;

#if defined(__SSE2__)
constexpr int64_t kLine = 64;

// `target` is aligned to 16 bytes, and `bytes` a multiple of kLine.
void StreamLines(char* target, const char* source, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kLine) {
    const auto* const from = reinterpret_cast<const __m128i*>(source + at);
    auto* const to = reinterpret_cast<__m128i*>(target + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();
}
#endif

}  // namespace

void StagingBuffer::Free::operator()(char* memory) const { ::operator delete(memory, kAlignment); }

char* StagingBuffer::Reserve(int64_t bytes) {
  if (bytes <= bytes_) return memory_.get();
  memory_.reset();
  bytes_ = 0;
  const int64_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_.reset(static_cast<char*>(::operator new(static_cast<size_t>(rounded), kAlignment)));
  bytes_ = rounded;
  // A hint: without it there are more page faults, once.
  static_cast<void>(::madvise(memory_.get(), static_cast<size_t>(rounded), MADV_HUGEPAGE));
  return memory_.get();
}

void CopyToStaging(char* target, const char* source, int64_t bytes) {
#if defined(__SSE2__)
  if (bytes >= kManyBytes) {
    const int64_t lead = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(target) & (kLine - 1));
    const int64_t lines = (bytes - lead) / kLine * kLine;
    std::memcpy(target, source, static_cast<size_t>(lead));
    StreamLines(target + lead, source + lead, lines);
    target += lead + lines;
    source += lead + lines;
    bytes -= lead + lines;
  }
#endif
  std::memcpy(target, source, static_cast<size_t>(bytes));
}

}  // namespace shardmesh::checkpoint::internal
