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

/// Compares what this rank has gathered, and its peak, with a model of it: at the beginning and the
/// end of each call of a unit (in a recomputation too), where its backward begins, and where
/// backward comes to a result on the side.
class GatherWatch {
 public:
  explicit GatherWatch(DeviceMesh mesh) : mesh_(std::move(mesh)) {}

  bool is_on = false;
  GatherModel model;

  /// As the model says now, and at most since the peaks were reset.
  void Expect(const std::string& when) const;

  /// One call of `module`, a unit or not; it ends by an exception unless End is called.
  class Call {
   public:
    Call(GatherWatch& watch, const nn::Module& module);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    /// The first op is next. `records`: ops are recorded. Returns x, which watches the end of its
    /// backward.
    DTensor Begin(bool records, const DTensor& x);
    /// Returns `value`, a result aside from y, which watches its backward. Not in a recomputation.
    DTensor Aside(const DTensor& value);
    /// Returns y, which watches its backward.
    DTensor End(const DTensor& y);

   private:
    void EndCall();

    GatherWatch* watch_;  // Null once it is over, or where there is nothing to watch.
    const nn::Module* module_;
    Call* outer_ = nullptr;
    bool is_unit_ = false;
    bool is_again_ = false;  // In a recomputation.
    bool records_ = false;
    int64_t id_ = 0;
  };

 private:
  DeviceMesh mesh_;
  Call* innermost_ = nullptr;
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
  Outputs Forward(const Inputs& inputs) override;

 private:
  void PassFuse(const DeviceMesh& mesh);
  bool HasTrainableParameter() const;

  Fuse& fuse_;
  GatherWatch& watch_;
  std::unique_ptr<nn::Linear> up_, down_;
  nn::Dropout dropout_{0.3};
  nn::Parameter unused_;
  std::vector<std::shared_ptr<Branch>> children_;
};

}  // namespace shardmesh::fsdp

#endif  // SHARDMESH_TESTS_FUZZ_BRANCH_H_
