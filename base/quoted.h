// SPDX-License-Identifier: Apache-2.0
//
// Text from outside (files, flags, paths, the environment), made fit for an error message: whatever
// bytes it holds, the message stays one short readable line.
//
//   Quoted("a\nb")                       'a\nb', with a backslash and an n
//   Quoted(std::string(5000, 'x'), 6)    'xxx...xxx' (5000 bytes)
#ifndef SHARDMESH_BASE_QUOTED_H_
#define SHARDMESH_BASE_QUOTED_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace shardmesh {

/// `text` in single quotes. Printable ASCII is kept; all other bytes, quotes and backslashes are
/// escaped as in C. If that takes more than `max_chars` characters, the middle is left out and the
/// length in bytes is added.
std::string Quoted(std::string_view text, size_t max_chars = 300);

}  // namespace shardmesh

#endif  // SHARDMESH_BASE_QUOTED_H_
