// SPDX-License-Identifier: Apache-2.0
//
// A tour of Shardmesh in six stops: make a mesh, shard tensors over it, compute, look at what
// moved, change layouts, differentiate. It prints what happens; read the program beside its output.
//
//   bazel run //examples:mesh_tour
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "shardmesh/shardmesh.h"

namespace shardmesh {
namespace {

// Every rank runs the whole program; what it has to say is the same, so one of them says it.
void Say(const DeviceMesh& mesh, const std::string& text) {
  if (mesh.WorldGroup().rank() == 0) std::cout << text << std::flush;
}

// A tensor of numbers with both signs, the same on every rank.
Tensor Numbers(const DeviceMesh& mesh, const Dims& shape) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    values.push_back(static_cast<float>(i * 7 % 11 - 5) / 4);
  }
  return Tensor::FromValues<float>(mesh.context(), shape, values);
}

std::string ToString(const Tensor& matrix) {
  std::string text;
  const std::vector<float> values = matrix.ToVector<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    absl::StrAppend(&text, i % matrix.dim(-1) == 0 ? "\n   " : "", " ", values[i]);
  }
  return text + "\n";
}

std::string Indented(const std::string& lines) {
  return absl::StrCat(
      "    ", absl::StrReplaceAll(absl::StripSuffix(lines, "\n"), {{"\n", "\n    "}}), "\n");
}

std::string Traffic(const CommTrace& trace) {
  return Indented(trace.events().empty() ? "nothing was sent" : trace.ToString());
}

// What each rank of the mesh holds. A layout knows this for all ranks: nobody has to ask.
std::string Boxes(const DTensor& x) {
  std::string text;
  const MeshShape& mesh = x.mesh().shape();
  for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank) {
    const Coord coord = mesh.CoordOf(rank);
    absl::StrAppend(&text, "    rank ", rank, " (dp ", coord[0], ", tp ", coord[1], ") holds ",
                    x.layout().LocalBox(coord).ToString(), "\n");
  }
  return text;
}

void Tour(Communicator& world) {
  // 1. A mesh gives the ranks of the world coordinates along named axes.
  const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}});
  Say(mesh, absl::StrCat("1. a mesh ", mesh.ToString(), "\n"));

  // 2. One placement an axis says where the pieces of a tensor live. Five rows on two ranks of dp:
  // nothing has to divide.
  const Tensor x_full = Numbers(mesh, {5, 3});
  const DTensor x = Distribute(mesh, x_full, {Shard(0), Replicate()});
  Say(mesh, absl::StrCat("\n2. x = ", x.ToString(), "\n", Boxes(x)));

  // 3. Ops see global tensors. Where the layouts fit, each rank computes its part and nothing
  // moves.
  const Tensor up_full = Numbers(mesh, {7, 3});
  DTensor up = Distribute(mesh, up_full, {Replicate(), Shard(0)});
  up.SetRequiresGrad();
  DTensor hidden;
  {
    const CommTrace trace(mesh);
    hidden = Linear(x, up);
    Say(mesh, absl::StrCat("\n3. hidden = x up^T with up = ", up.ToString(), "\n   is ",
                           hidden.ToString(), "\n", Traffic(trace)));
  }

  // 4. A product over a sharded dim leaves each rank with a summand: Partial. Still nothing moves;
  // a Partial is a value like any other, whose sum is still to be taken.
  const Tensor down_full = Numbers(mesh, {2, 7});
  DTensor down = Distribute(mesh, down_full, {Replicate(), Shard(1)});
  down.SetRequiresGrad();
  const DTensor y = Linear(hidden, down);
  Say(mesh, absl::StrCat("\n4. y = hidden down^T is ", y.ToString(), "\n"));

  // 5. Another layout is another way to hold the same tensor. The plan says beforehand what has to
  // move; the trace counts what did. FullTensor gives the whole to everyone.
  const std::vector<Placement> target = {Replicate(), Replicate()};
  const Plan plan = MakePlan(y.layout(), Layout::Make(mesh.shape(), target, y.shape()),
                             {.element_bytes = SizeOf(y.dtype())});
  {
    const CommTrace trace(mesh);
    const DTensor whole = Redistribute(y, target);
    Say(mesh, absl::StrCat("\n5. to have y everywhere:\n", Indented(plan.Explain()),
                           "   sent by rank 0:\n", Traffic(trace),
                           "   y =", ToString(FullTensor(whole))));
  }
  // The same in one place, without a mesh, on whole tensors.
  const Tensor alone =
      ops::MatMul(mesh.context(), ops::MatMul(mesh.context(), x_full, up_full.Transpose(0, 1)),
                  down_full.Transpose(0, 1));
  Say(mesh, absl::StrCat("   on one device it is", ToString(alone)));

  // 6. The gradient of a tensor is a tensor in the same layout; what has to be sent for that
  // follows from the layouts, too.
  const DTensor loss = Mean(Square(y));
  const double value = Item(loss);
  {
    const CommTrace trace(mesh);
    Backward(loss);
    Say(mesh,
        absl::StrCat("\n6. loss = mean(y^2) = ", value, "; the gradient of up is ",
                     up.grad().ToString(), "\n   sent by rank 0 in backward:\n", Traffic(trace)));
  }
}

}  // namespace
}  // namespace shardmesh

int main() {
  // Four ranks, each a thread of this process. What one of them throws comes back as the status.
  const absl::Status status = shardmesh::RunRanks(4, shardmesh::Tour);
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << "mesh_tour: " << status.message() << std::endl;
  return EXIT_FAILURE;
}
