// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/diff.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/array_stream.h"
#include "shardmesh/checkpoint/internal/piece_files.h"
#include "shardmesh/tensor/execution_context.h"
#include "shardmesh/tools/checkpoint/located.h"
#include "shardmesh/tools/checkpoint/name_filter.h"
#include "shardmesh/tools/checkpoint/printed.h"

namespace shardmesh::checkpoint::tool {
namespace {

using internal::ArrayStream;
using internal::PieceFiles;

// One of the two.
struct Side {
  char label;
  Format format;
  Contents contents;
  std::map<std::string, const StoredArray*, std::less<>> by_name;  // Aliases too.
};

absl::StatusOr<Side> OpenSide(char label, const std::string& path, Console& console) {
  SHARDMESH_ASSIGN_OR_RETURN(const Located located, Locate(path, console));
  Side side = {label, located.format, {}, {}};
  SHARDMESH_ASSIGN_OR_RETURN(side.contents, OpenContents(located));
  return side;
}

std::string Described(const StoredArray& array) {
  return absl::StrCat(PrintedName(array.file_dtype), array.shape.ToString());
}

// "[3,0,5]" of the element with this row-major index.
std::string IndexOf(int64_t element, const Dims& shape) {
  Dims index = Dims::Filled(shape.size(), 0);
  for (int d = shape.size() - 1; d >= 0; --d) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  return index.ToString();
}

class Differ {
 public:
  Differ(Side a, Side b, const DiffOptions& options, Console& console)
      : a_(std::move(a)),
        b_(std::move(b)),
        options_(options),
        console_(console),
        filter_(options.names),
        files_a_(a_.contents),
        files_b_(b_.contents) {
    for (Side* side : {&a_, &b_}) {
      for (const StoredArray& array : side->contents.arrays) {
        for (const std::string& name : NamesOf(*side, array)) side->by_name[name] = &array;
      }
    }
  }

  absl::StatusOr<int64_t> Run() {
    const std::vector<std::pair<const StoredArray*, const StoredArray*>> pairs = Pairs();
    int64_t bytes = 0;
    for (const auto& [a, b] : pairs) bytes = SaturatingSum(bytes, BytesOf(*a));
    {
      Progress progress(console_, options_.progress, "diff", bytes);
      progress_ = &progress;
      for (const auto& [a, b] : pairs) SHARDMESH_RETURN_IF_ERROR(Compare(*a, *b));
      progress_ = nullptr;
    }
    CompareValues();
    console_.out << (num_differences_ == 0 ? "no difference"
                                           : PrintedCount(num_differences_, "difference"))
                 << "; " << PrintedCount(static_cast<int64_t>(pairs.size()), "tensor")
                 << " compared, " << PrintedBytes(bytes) << "\n";
    return num_differences_;
  }

 private:
  void Print(const std::string& line) {
    if (progress_ != nullptr) progress_->Clear();
    console_.out << line << "\n";
  }
  void Difference(const std::string& line) {
    ++num_differences_;
    Print(line);
  }

  // The name and the aliases; those of A without the prefix.
  std::vector<std::string> NamesOf(const Side& side, const StoredArray& array) const {
    std::vector<std::string> names = array.aliases;
    names.insert(names.begin(), array.name);
    if (&side == &b_) return names;
    for (std::string& name : names) {
      if (name.starts_with(options_.strip_prefix)) name.erase(0, options_.strip_prefix.size());
    }
    return names;
  }

  // Arrays of A with those of B under any of their names. Reports those without.
  std::vector<std::pair<const StoredArray*, const StoredArray*>> Pairs() {
    std::vector<std::pair<const StoredArray*, const StoredArray*>> pairs;
    std::set<const StoredArray*> found;
    for (const StoredArray& array : a_.contents.arrays) {
      if (!filter_.MatchesAny(array.name, array.aliases)) continue;
      std::set<const StoredArray*> own;
      for (const std::string& name : NamesOf(a_, array)) {
        const auto other = b_.by_name.find(name);
        if (other != b_.by_name.end() && own.insert(other->second).second)
          pairs.emplace_back(&array, other->second);
      }
      if (own.empty()) OnlyIn(a_, array);
      found.insert(own.begin(), own.end());
    }
    for (const StoredArray& array : b_.contents.arrays) {
      const bool is_meant = filter_.MatchesAny(array.name, array.aliases);
      if (is_meant && found.count(&array) == 0) OnlyIn(b_, array);
    }
    return pairs;
  }

  void OnlyIn(const Side& side, const StoredArray& array) {
    Difference(absl::StrCat("only in ", std::string(1, side.label), ": ", PrintedName(array.name),
                            " ", Described(array)));
  }

  absl::Status Compare(const StoredArray& a, const StoredArray& b) {
    std::string name = PrintedName(a.name);
    if (NamesOf(a_, a)[0] != b.name) absl::StrAppend(&name, " = ", PrintedName(b.name));
    if (!(a.shape == b.shape)) {
      Difference(
          absl::StrCat("shape: ", name, " is ", Described(a), " in A and ", Described(b), " in B"));
      progress_->Add(BytesOf(a));
      return absl::OkStatus();
    }
    const bool is_dtype_different = a.file_dtype != b.file_dtype;
    if (is_dtype_different && !options_.ignore_dtype) {
      Difference(
          absl::StrCat("dtype: ", name, " is ", Described(a), " in A and ", Described(b), " in B"));
    }
    if (!a.dtype || !b.dtype) return CompareBytes(a, b, name);
    ElementDifference difference(*a.dtype, *b.dtype, options_.tolerance);
    SHARDMESH_RETURN_IF_ERROR(CompareElements(a, b, difference));
    if (difference.num_different() > 0) {
      Difference(Sentence(name, a, difference));
    } else if (options_.all) {
      Print(absl::StrCat("equal: ", name, " ", Described(a),
                         difference.max_absolute() > 0
                             ? absl::StrFormat(", max abs %.6g, max rel %.6g",
                                               difference.max_absolute(), difference.max_relative())
                             : ""));
    }
    return absl::OkStatus();
  }

  absl::Status CompareElements(const StoredArray& a, const StoredArray& b,
                               ElementDifference& difference) {
    const int64_t max_elements =
        options_.buffer_bytes / std::max(SizeOf(*a.dtype), SizeOf(*b.dtype));
    ArrayStream stream_a(context_, files_a_, a, *a.dtype, max_elements);
    ArrayStream stream_b(context_, files_b_, b, *b.dtype, max_elements);
    while (true) {
      SHARDMESH_ASSIGN_OR_RETURN(const ArrayStream::Part part_a, stream_a.Next());
      SHARDMESH_ASSIGN_OR_RETURN(const ArrayStream::Part part_b, stream_b.Next());
      if (part_a.count == 0) return absl::OkStatus();
      difference.Add(part_a.data, part_b.data, part_a.count);
      progress_->Add(part_a.count * SizeOf(*a.dtype));
    }
  }

  static std::string Sentence(const std::string& name, const StoredArray& a,
                              const ElementDifference& difference) {
    std::string text =
        absl::StrFormat("values: %s %s: %d of %d elements differ, max abs %.6g, max rel %.6g", name,
                        Described(a), difference.num_different(), difference.num_elements(),
                        difference.max_absolute(), difference.max_relative());
    if (difference.num_nan() > 0)
      absl::StrAppend(&text, ", ", difference.num_nan(), " are NaN in one alone");
    absl::StrAppend(&text, "; first at ", IndexOf(difference.first(), a.shape), ": ",
                    difference.first_a(), " and ", difference.first_b());
    return text;
  }

  // Of a dtype without arithmetic: only whether the bytes are the same.
  absl::Status CompareBytes(const StoredArray& a, const StoredArray& b, const std::string& name) {
    if (a.file_dtype != b.file_dtype) {
      Difference(absl::StrCat("values: ", name, " are not compared, as ", PrintedName(a.file_dtype),
                              " and ", PrintedName(b.file_dtype), " cannot be"));
      progress_->Add(BytesOf(a));
      return absl::OkStatus();
    }
    if (a.pieces.size() != 1 || b.pieces.size() != 1 || BytesOf(a) != BytesOf(b)) {
      return absl::UnimplementedError(absl::StrCat("tensor ", name, ": boxes of dtype ",
                                                   PrintedName(a.file_dtype),
                                                   " cannot be compared; leave it out by --names"));
    }
    const std::string path_a = PathOf(a_.contents, a_.contents.files[a.pieces[0].file]);
    const std::string path_b = PathOf(b_.contents, b_.contents.files[b.pieces[0].file]);
    SHARDMESH_ASSIGN_OR_RETURN(const RegularFile file_a, RegularFile::Open(path_a));
    SHARDMESH_ASSIGN_OR_RETURN(const RegularFile file_b, RegularFile::Open(path_b));
    constexpr int64_t kBufferBytes = 1 << 20;
    std::string bytes_a(kBufferBytes, '\0'), bytes_b(kBufferBytes, '\0');
    int64_t different = 0;
    for (int64_t done = 0; done < BytesOf(a); done += kBufferBytes) {
      const int64_t count = std::min(kBufferBytes, BytesOf(a) - done);
      SHARDMESH_RETURN_IF_ERROR(ReadAt(file_a, path_a, a.pieces[0].begin + done, bytes_a, count));
      SHARDMESH_RETURN_IF_ERROR(ReadAt(file_b, path_b, b.pieces[0].begin + done, bytes_b, count));
      for (int64_t i = 0; i < count; ++i) different += bytes_a[i] != bytes_b[i] ? 1 : 0;
      progress_->Add(count);
    }
    if (different > 0) {
      Difference(absl::StrCat("values: ", name, " ", Described(a), ": ", different, " of ",
                              BytesOf(a), " bytes differ"));
    } else if (options_.all) {
      Print(absl::StrCat("equal: ", name, " ", Described(a), ", by its bytes"));
    }
    return absl::OkStatus();
  }

  static absl::Status ReadAt(const RegularFile& file, const std::string& path, int64_t offset,
                             std::string& buffer, int64_t count) {
    const absl::Status status = file.ReadAt(offset, buffer.data(), count);
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(Quoted(path), ": ", status.message()));
  }

  void CompareValues() {
    if (a_.format != Format::kShardmesh || b_.format != Format::kShardmesh) return;
    std::map<std::string_view, const StateValue*> in_b;
    for (const auto& [name, value] : b_.contents.values) {
      if (filter_.Matches(name)) in_b[name] = &value;
    }
    for (const auto& [name, value] : a_.contents.values) {
      if (!filter_.Matches(name)) continue;
      const auto other = in_b.find(name);
      if (other == in_b.end()) {
        Difference(absl::StrCat("only in A: ", PrintedName(name), " = ", PrintedValue(value)));
        continue;
      }
      if (!IsSame(value, *other->second)) {
        Difference(absl::StrCat("plain value: ", PrintedName(name), " is ",
                                DescribeStateValue(value), " ", PrintedValue(value), " in A and ",
                                DescribeStateValue(*other->second), " ",
                                PrintedValue(*other->second), " in B"));
      }
      in_b.erase(other);
    }
    for (const auto& [name, value] : in_b)
      Difference(absl::StrCat("only in B: ", PrintedName(name), " = ", PrintedValue(*value)));
  }

  // Of one kind and the same; of doubles by their value, NaNs alike.
  static bool IsSame(const StateValue& a, const StateValue& b) {
    if (a.index() != b.index()) return false;
    if (const auto* list = std::get_if<StateList>(&a)) {
      const auto& other = std::get<StateList>(b);
      return std::equal(list->items.begin(), list->items.end(), other.items.begin(),
                        other.items.end(), IsSame);
    }
    if (const auto* x = std::get_if<double>(&a)) {
      const double y = std::get<double>(b);
      return *x == y || (*x != *x && y != y);
    }
    if (const auto* x = std::get_if<int64_t>(&a)) return *x == std::get<int64_t>(b);
    if (const auto* x = std::get_if<bool>(&a)) return *x == std::get<bool>(b);
    if (const auto* x = std::get_if<std::string>(&a)) return *x == std::get<std::string>(b);
    return true;  // A tensor within a list is compared among the tensors.
  }

  Side a_, b_;
  const DiffOptions& options_;
  Console& console_;
  NameFilter filter_;
  PieceFiles files_a_, files_b_;
  ExecutionContext context_;
  Progress* progress_ = nullptr;
  int64_t num_differences_ = 0;
};

}  // namespace

absl::StatusOr<int64_t> Diff(const std::string& path_a, const std::string& path_b,
                             const DiffOptions& options, Console& console) {
  const Tolerance& tolerance = options.tolerance;
  if (tolerance.bits && (tolerance.rtol > 0 || tolerance.atol > 0))
    return absl::InvalidArgumentError("--bits and a tolerance exclude each other");
  SHARDMESH_ASSIGN_OR_RETURN(Side a, OpenSide('A', path_a, console));
  SHARDMESH_ASSIGN_OR_RETURN(Side b, OpenSide('B', path_b, console));
  return Differ(std::move(a), std::move(b), options, console).Run();
}

}  // namespace shardmesh::checkpoint::tool
