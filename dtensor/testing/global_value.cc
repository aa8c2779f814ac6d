// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/testing/global_value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

constexpr double kGrid = 256;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Calls fn(row-major index in `shape`) for every index in `box`, in row-major order.
void ForEachIndex(const Dims& shape, const Box& box, absl::FunctionRef<void(int64_t)> fn) {
  const int64_t count = box.NumElements();
  const Dims extents = box.Extents();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, stride = 1, index = 0;
    for (int d = shape.size() - 1; d >= 0; --d) {
      index += (box.begin[d] + rest % extents[d]) * stride;
      rest /= extents[d];
      stride *= shape[d];
    }
    fn(index);
  }
}

// The axes that hold parts: their op, how many parts there are, and which of them `coord` holds.
struct PartialGroup {
  PartialGroup(const Layout& layout, const Coord& coord) {
    for (int axis = 0; axis < layout.num_axes(); ++axis) {
      if (!layout.placement(axis).IsPartial()) continue;
      op = layout.placement(axis).op();
      index = index * layout.mesh().size(axis) + coord[axis];
      count *= layout.mesh().size(axis);
    }
  }
  ReduceOp op = ReduceOp::kSum;
  int count = 1;
  int index = 0;
};

// A summand of a Partial sum, larger than the values of tests.
double Summand(uint64_t bits, DType dtype) {
  return (static_cast<double>(bits % 8191) - 4095) / (IsFloating(dtype) ? kGrid : 1.0);
}

double PartOf(const PartialGroup& group, double value, DType dtype, uint64_t bits) {
  const auto part_bits = [&](int part) {
    return Mix(bits + static_cast<uint64_t>(part) * 0x9e3779b97f4a7c15u);
  };
  switch (group.op) {
    case ReduceOp::kSum: {
      if (group.index < group.count - 1) return Summand(part_bits(group.index), dtype);
      double rest = value;
      for (int part = 0; part < group.count - 1; ++part) rest -= Summand(part_bits(part), dtype);
      return rest;
    }
    case ReduceOp::kMax:
    case ReduceOp::kMin: {
      if (static_cast<int>(bits % static_cast<uint64_t>(group.count)) == group.index) return value;
      const double away = static_cast<double>(part_bits(group.index) % 5);
      return group.op == ReduceOp::kMax ? value - away : value + away;
    }
    case ReduceOp::kProduct: {
      const auto factor = [&](int part) {
        const double sign = (part_bits(part) & 1) != 0 ? -1.0 : 1.0;
        return IsFloating(dtype)
                   ? sign * std::ldexp(1.0, static_cast<int>(part_bits(part) / 2 % 3) - 1)
                   : sign;
      };
      if (group.index < group.count - 1) return factor(group.index);
      double rest = value;
      for (int part = 0; part < group.count - 1; ++part) rest /= factor(part);
      return rest;
    }
  }
  return 0;
}

double Combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kMin:
      return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
    case ReduceOp::kMax:
      return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
  }
  return 0;
}

}  // namespace

uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15u;
  return Mix(state_);
}

GlobalValue RandomGlobal(const Dims& shape, Random& random, double low, double high) {
  GlobalValue value{shape, DType::kF64};
  const auto steps = static_cast<int64_t>((high - low) * kGrid);
  for (int64_t i = 0; i < shape.NumElements(); ++i)
    value.values.push_back(low + static_cast<double>(random.Below(steps)) / kGrid);
  return value;
}

GlobalValue Values(const Dims& shape, uint64_t seed) {
  Random random(seed);
  return RandomGlobal(shape, random);
}

GlobalValue RandomAwayFromZero(const Dims& shape, Random& random, double low, double high) {
  GlobalValue value = RandomGlobal(shape, random, low, high);
  for (double& v : value.values) v = random.Below(2) == 0 ? v : -v;
  return value;
}

GlobalValue RandomIntegers(const Dims& shape, Random& random, int64_t low, int64_t high,
                           DType dtype) {
  GlobalValue value{shape, dtype};
  for (int64_t i = 0; i < shape.NumElements(); ++i)
    value.values.push_back(static_cast<double>(low + random.Below(high - low)));
  return value;
}

GlobalValue RandomBools(const Dims& shape, Random& random) {
  return RandomIntegers(shape, random, 0, 2, DType::kBool);
}

GlobalValue GlobalOf(const Tensor& x) { return {x.shape(), x.dtype(), x.ToVector<double>()}; }

Tensor WholeTensor(ExecutionContext& context, const GlobalValue& value) {
  return ops::Cast(
      context,
      Tensor::FromValues<double>(context, value.shape, std::span<const double>(value.values)),
      value.dtype);
}

std::vector<double> BoxOf(const GlobalValue& value, const Box& box) {
  std::vector<double> result;
  ForEachIndex(value.shape, box, [&](int64_t i) { result.push_back(value.values[i]); });
  return result;
}

Tensor LocalPart(ExecutionContext& context, const Layout& layout, const Coord& coord,
                 const GlobalValue& value, uint64_t seed) {
  const Box box = layout.LocalBox(coord);
  const PartialGroup group(layout, coord);
  std::vector<double> local;
  ForEachIndex(value.shape, box, [&](int64_t i) {
    const double v = value.values[i];
    local.push_back(
        group.count == 1 ? v : PartOf(group, v, value.dtype, Mix(seed * 0x100000001b3u + i + 1)));
  });
  const Tensor exact =
      Tensor::FromValues<double>(context, box.Extents(), std::span<const double>(local));
  return ops::Cast(context, exact, value.dtype);
}

DTensor Place(const DeviceMesh& mesh, const Layout& layout, const GlobalValue& value,
              uint64_t seed) {
  return DTensor(mesh, layout, LocalPart(mesh.context(), layout, mesh.coord(), value, seed));
}

DTensor Place(const DeviceMesh& mesh, std::initializer_list<Placement> placements,
              const GlobalValue& value, uint64_t seed) {
  return Place(mesh, Layout::Make(mesh.shape(), placements, value.shape), value, seed);
}

void Pieces::Put(const DTensor& x) {
  Piece piece{x.layout(), x.mesh().coord(), x.local().shape(), x.dtype(),
              x.local().ToVector<double>()};
  const std::lock_guard lock(mutex_);
  pieces_.push_back(std::move(piece));
}

::testing::AssertionResult Pieces::Assemble(GlobalValue& result) const {
  const std::lock_guard lock(mutex_);
  if (pieces_.empty()) return ::testing::AssertionFailure() << "no rank has put a piece";
  const Layout layout = pieces_[0].layout;
  const int64_t ranks = layout.mesh().NumRanks();
  if (static_cast<int64_t>(pieces_.size()) != ranks)
    return ::testing::AssertionFailure() << pieces_.size() << " pieces of " << layout;
  std::vector<const Piece*> by_rank(ranks, nullptr);
  for (const Piece& piece : pieces_) by_rank[layout.mesh().RankOf(piece.coord)] = &piece;
  const int64_t count = layout.global_shape().NumElements();
  result = {layout.global_shape(), pieces_[0].dtype, std::vector<double>(count, 0.0)};
  std::vector<int> covered(count, 0);
  int parts = 1;
  for (int64_t r = 0; r < ranks; ++r) {
    const Piece* piece = by_rank[r];
    if (piece == nullptr)
      return ::testing::AssertionFailure() << "a rank has put two pieces of " << layout;
    const Coord& coord = piece->coord;
    if (!(piece->layout == layout) || piece->dtype != result.dtype) {
      return ::testing::AssertionFailure()
             << "ranks disagree: " << layout << " and " << piece->layout;
    }
    if (!(piece->shape == layout.LocalShape(coord))) {
      return ::testing::AssertionFailure()
             << "rank " << r << " holds " << piece->shape << ", not its box of " << layout;
    }
    Coord first = coord;  // Of the replicas.
    for (int axis = 0; axis < layout.num_axes(); ++axis) {
      if (layout.placement(axis).IsReplicate()) first[axis] = 0;
    }
    const Piece* original = by_rank[layout.mesh().RankOf(first)];
    if (original != nullptr && original != piece) {
      if (!SameBits(original->values, piece->values)) {
        return ::testing::AssertionFailure()
               << "ranks " << layout.mesh().RankOf(first) << " and " << r
               << " hold different bits of one replica of " << layout;
      }
      continue;
    }
    const PartialGroup group(layout, coord);
    parts = group.count;
    int64_t position = 0;
    ForEachIndex(layout.global_shape(), layout.LocalBox(coord), [&](int64_t i) {
      const double v = piece->values[position++];
      result.values[i] = covered[i]++ == 0 ? v : Combine(group.op, result.values[i], v);
    });
  }
  if (!std::all_of(covered.begin(), covered.end(), [&](int times) { return times == parts; }))
    return ::testing::AssertionFailure() << "boxes do not tile " << layout;
  return ::testing::AssertionSuccess();
}

GlobalValue Pieces::Value() const {
  GlobalValue result;
  EXPECT_TRUE(Assemble(result));
  return result;
}

::testing::AssertionResult Pieces::AreOf(const GlobalValue& expected, double tolerance) const {
  GlobalValue actual;
  if (::testing::AssertionResult assembled = Assemble(actual); !assembled) return assembled;
  if (!(actual.shape == expected.shape) || actual.dtype != expected.dtype) {
    return ::testing::AssertionFailure()
           << std::string(Name(actual.dtype)) << layout() << " does not have the shape "
           << expected.shape << " or the dtype " << std::string(Name(expected.dtype));
  }
  ::testing::AssertionResult result = AreClose(actual.values, expected.values, tolerance);
  return result ? result : result << " in " << layout();
}

::testing::AssertionResult AreClose(const std::vector<double>& actual,
                                    const std::vector<double>& expected, double tolerance) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure()
           << actual.size() << " elements, expected " << expected.size();
  double largest = 0;
  for (double v : expected) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = actual[i], e = expected[i];
    const bool close = std::isnan(e)   ? std::isnan(a)
                       : std::isinf(e) ? a == e
                                       : std::abs(a - e) <= tolerance * largest;
    if (!close) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << ::testing::PrintToString(a) << ", expected "
             << ::testing::PrintToString(e) << " (largest " << largest << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

std::vector<Layout> AllLayouts(const MeshShape& mesh, const Dims& shape,
                               const std::vector<ReduceOp>& partials) {
  std::vector<Placement> choices = {Replicate()};
  for (int d = 0; d < shape.size(); ++d) choices.push_back(Shard(d));
  for (ReduceOp op : partials) choices.push_back(Partial(op));
  std::vector<std::vector<Placement>> all = {{}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<std::vector<Placement>> longer;
    for (const auto& prefix : all) {
      for (const Placement& choice : choices) {
        longer.push_back(prefix);
        longer.back().push_back(choice);
      }
    }
    all = std::move(longer);
  }
  std::vector<Layout> layouts;
  for (const auto& placements : all) {
    std::vector<int> order;
    const Placement* partial = nullptr;
    bool mixed = false;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (placements[axis].IsShard()) order.push_back(axis);
      if (!placements[axis].IsPartial()) continue;
      mixed |= partial != nullptr && !(*partial == placements[axis]);
      partial = &placements[axis];
    }
    if (mixed) continue;
    do {
      const Layout layout = Layout::Make(mesh, placements, shape, order);
      if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end())
        layouts.push_back(layout);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return layouts;
}

void OnMesh(const MeshShape& shape, absl::FunctionRef<void(const DeviceMesh& mesh)> fn) {
  RunOptions options;
  options.timeout = absl::Seconds(60);
  options.threads_per_rank = 1;
  const absl::Status status = RunRanks(
      static_cast<int>(shape.NumRanks()),
      [&](Communicator& world) { fn(DeviceMesh::Create(world, shape)); }, options);
  EXPECT_TRUE(status.ok()) << status;
}

std::string ErrorOf(absl::FunctionRef<void()> fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  ADD_FAILURE() << "expected an Error";
  return "";
}

}  // namespace shardmesh::testing
