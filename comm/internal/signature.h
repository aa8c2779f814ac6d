// SPDX-License-Identifier: Apache-2.0
//
// What must agree between the members of a collective, as bytes that processes exchange: digests
// with every collective, the whole only when digests differ.
#ifndef SHARDMESH_COMM_INTERNAL_SIGNATURE_H_
#define SHARDMESH_COMM_INTERNAL_SIGNATURE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "shardmesh/comm/internal/posted_call.h"

namespace shardmesh::internal {

/// Of what all members pass alike: two calls have equal ones if Difference finds none. The same on
/// every machine.
uint64_t Digest(const PostedCall& call);

// Of what two members of an all-to-all pass alike: equal if PairDifference finds none. 0 for other
// kinds.
uint64_t DigestOfSends(const PostedCall& call, int to);
uint64_t DigestOfReceives(const PostedCall& call, int from);

/// Kind, reduction, op, and of all tensors dtype and shape.
std::string Serialize(const PostedCall& call);
/// The call with tensors that have no elements (Tensor::Meta), for Difference and PairDifference.
/// Errors: throws Error(kInternal) if `bytes` is nothing that Serialize has made.
PostedCall ParseCall(std::string_view bytes);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_COMM_INTERNAL_SIGNATURE_H_
