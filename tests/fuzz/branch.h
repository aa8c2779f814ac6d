// SPDX-License-Identifier: Apache-2.0
//
// The modules of the FullyShard fuzzer's trees.
#ifndef SHARDMESH_TESTS_FUZZ_BRANCH_H_
#define SHARDMESH_TESTS_FUZZ_BRANCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardmesh/nn/dropout.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/tests/fuzz/gather_model.h"

namespace shardmesh::fsdp {

/// Throws std::runtime_error at one point that it comes to; counts them.
struct Fuse {
  int points_left = -1;  ///< Negative: none throws.
  void Pass();
};

/// Compares what this rank has gathered with a model of it, at the beginning of each call of a unit
/// and where its backward begins.
class GatherWatch {
 public:
  explicit GatherWatch(DeviceMesh mesh) : mesh_(std::move(mesh)) {}

  bool is_on = false;
  GatherModel model;

  void BeginBackward(const GatherModel::Graph& graph);
  /// An exception has ended it, and the graph is gone.
  void FailBackward();
  void Expect(int64_t bytes, const std::string& when) const;

  /// One call of `module`; by an exception unless End is called.
  class Call {
   public:
    Call(GatherWatch& watch, const nn::Module& module);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    /// Returns y, which watches its backward.
    DTensor End(bool records, const DTensor& y);

   private:
    GatherWatch* watch_;  // Null once it is over, or where there is nothing to watch.
  };

 private:
  DeviceMesh mesh_;
  // The Backward that runs: its graph, the model at its beginning, what is expected at each call of
  // a unit, and the next of these.
  GatherModel::Graph graph_;
  GatherModel before_;
  std::vector<int64_t> in_backward_;
  size_t next_ = 0;
};

/// x + 0.5 down(tanh(up(x))), then the children that the route names, in its order. All in f64.
class Branch : public nn::Module {
 public:
  static constexpr int64_t kFeatures = 5;  ///< Of x and the result, [rows, features].

  /// `tied`, if not null, is the weight of `up`.
  Branch(int64_t width, const nn::Parameter* tied, Fuse& fuse, GatherWatch& watch);
  void Adopt(const std::string& name, std::shared_ptr<Branch> child);
  /// Of one or two results.
  DTensor Combined(const DTensor& x);
  const nn::Linear& up() const { return *up_; }
  const nn::Linear& down() const { return *down_; }
  size_t num_children() const { return children_.size(); }

  std::vector<int> route;
  bool detaches = false;                   ///< Lets no gradient through to `up`.
  bool drops = false;                      ///< Some of the hidden values.
  bool has_second = false;                 ///< Returns two results, of which
  bool uses_second = false;                ///< the caller uses the second.
  std::optional<DTensor>* side = nullptr;  ///< Where a further result goes.

 protected:
  Outputs Forward(const Inputs& x) override;

 private:
  void PassFuse(const DeviceMesh& mesh);
  bool HasTrainableParameter() const;

  Fuse& fuse_;
  GatherWatch& watch_;
  std::unique_ptr<nn::Linear> up_, down_;
  nn::Dropout dropout_{0.3};
  nn::Parameter unused_;
  std::vector<std::shared_ptr<Branch>> children_;
  bool records_ = false;  // In the last call.
};

}  // namespace shardmesh::fsdp

#endif  // SHARDMESH_TESTS_FUZZ_BRANCH_H_
