// SPDX-License-Identifier: Apache-2.0
//
// A tour of Shardmesh in six steps: create a mesh, shard tensors over it, compute, see what was
// communicated, change layouts, differentiate. Read the program beside its output.
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

// Prints on rank 0: every rank runs the whole program and has the same text.
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

// The box of each rank of the mesh. A layout gives all of them without communication.
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

  // 2. One placement per axis says where the pieces of a tensor are. Extents need not be divisible:
  // here five rows are sharded over the two ranks of dp.
  const Tensor x_full = Numbers(mesh, {5, 3});
  const DTensor x = Distribute(mesh, x_full, {Shard(0), Replicate()});
  Say(mesh, absl::StrCat("\n2. x = ", x.ToString(), "\n", Boxes(x)));

  // 3. Ops work on global tensors. If the layouts fit, each rank computes its part without
  // communication.
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

  // 4. A product over a sharded dim leaves each rank with a summand: the result is Partial. This
  // still needs no communication; the sum is taken when it is needed.
  const Tensor down_full = Numbers(mesh, {2, 7});
  DTensor down = Distribute(mesh, down_full, {Replicate(), Shard(1)});
  down.SetRequiresGrad();
  const DTensor y = Linear(hidden, down);
  Say(mesh, absl::StrCat("\n4. y = hidden down^T is ", y.ToString(), "\n"));

  // 5. Redistribute changes the layout of a tensor, not its value. The plan predicts the
  // communication, the trace counts it. FullTensor returns the whole tensor on every rank.
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
  // The same computation without a mesh, on whole tensors.
  const Tensor alone =
      ops::MatMul(mesh.context(), ops::MatMul(mesh.context(), x_full, up_full.Transpose(0, 1)),
                  down_full.Transpose(0, 1));
  Say(mesh, absl::StrCat("   on one device it is", ToString(alone)));

  // 6. The gradient of a tensor has the same layout as the tensor. The communication that this
  // needs follows from the layouts as well.
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
  // Four ranks, each a thread of this process. An exception on any of them becomes the status.
  const absl::Status status = shardmesh::RunRanks(4, shardmesh::Tour);
  // Text that stdout did not take is a failure, too.
  if (status.ok() && std::cout.flush()) return EXIT_SUCCESS;
  std::cerr << "mesh_tour: " << (status.ok() ? "cannot write to stdout" : status.message())
            << std::endl;
  return EXIT_FAILURE;
}
