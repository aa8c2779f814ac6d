// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "shardmesh/base/error.h"
#include "shardmesh/nn/module_list.h"

namespace shardmesh::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Passes its input through, and has what a test registers.
class Bare : public Module {
 public:
  using Module::FullName;
  using Module::RegisterBuffer;
  using Module::RegisterChild;
  using Module::RegisterParameter;

  Parameter Add(const std::string& name) {
    return RegisterParameter(name, {3}, DType::kF32, Init::Constant(1));
  }
  std::vector<std::string>* log = nullptr;

 protected:
  DTensor Forward(const Inputs& inputs) override {
    if (log != nullptr) log->push_back("forward");
    return inputs[0];
  }
};

std::vector<std::string> NamesOf(const Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : module.NamedParameters()) names.push_back(name);
  return names;
}

std::string MessageOf(const std::function<void()>& call) {
  const absl::Status status = Catch(call);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(Module, ListsParametersDepthFirstInOrderOfRegistration) {
  Bare root, left, right, leaf;
  root.RegisterChild("left", left);
  root.Add("own");
  left.RegisterChild("leaf", leaf);
  left.Add("w");
  leaf.Add("w");
  root.RegisterChild("right", right);
  right.Add("b");
  right.Add("a");
  EXPECT_THAT(NamesOf(root), ElementsAre("own", "left.w", "left.leaf.w", "right.b", "right.a"));
  std::vector<std::string> modules;
  for (const auto& [name, module] : root.NamedModules()) modules.push_back(name);
  EXPECT_THAT(modules, ElementsAre("", "left", "left.leaf", "right"));
  EXPECT_EQ(root.NamedModules()[2].module, &leaf);
  EXPECT_EQ(leaf.FullName(), "left.leaf");
}

TEST(Module, ListsATiedParameterOnceUnderItsFirstName) {
  Bare root, embed, head;
  root.RegisterChild("embed", embed);
  root.RegisterChild("head", head);
  const Parameter weight = embed.Add("weight");
  head.RegisterParameter("weight", weight);
  EXPECT_THAT(NamesOf(root), ElementsAre("embed.weight"));
  EXPECT_EQ(weight.name(), "embed.weight");
  EXPECT_EQ(*head.FindOwnParameter("weight"), weight);
  EXPECT_EQ(head.FindOwnParameter("bias"), nullptr);
}

// Two blocks whose parameters were named from each block alone would draw the same initial values.
TEST(Module, NamesParametersFromTheOutermostModuleWhereverItIsAsked) {
  Bare root, block, head;
  root.RegisterChild("block", block);
  root.RegisterChild("head", head);
  const Parameter weight = block.Add("weight");
  head.RegisterParameter("weight", weight);
  EXPECT_THAT(NamesOf(head), ElementsAre("weight"));
  EXPECT_EQ(weight.name(), "block.weight");
  Bare outer;
  outer.RegisterChild("model", root);
  EXPECT_THAT(NamesOf(block), ElementsAre("weight"));
  EXPECT_EQ(weight.name(), "model.block.weight");
}

TEST(Module, RefusesNamesThatAreEmptyDottedOrTaken) {
  Bare root, child, other;
  root.Add("w");
  root.RegisterChild("c", child);
  root.RegisterBuffer("b", Tensor::Meta({1}, DType::kF32));
  EXPECT_THAT(MessageOf([&] { root.Add(""); }), HasSubstr("''"));
  EXPECT_THAT(MessageOf([&] { root.Add("a.b"); }), HasSubstr("'a.b'"));
  for (const std::string name : {"w", "c", "b"}) {
    EXPECT_THAT(MessageOf([&] { root.Add(name); }), HasSubstr("'" + name + "'"));
    EXPECT_THAT(MessageOf([&] { root.RegisterChild(name, other); }), HasSubstr("'" + name + "'"));
  }
  EXPECT_THAT(MessageOf([&] { child.RegisterChild("up", root); }), HasSubstr("below itself"));
  EXPECT_THAT(MessageOf([&] { root.RegisterChild("me", root); }), HasSubstr("below itself"));
  EXPECT_THAT(MessageOf([&] { root.RegisterParameter("none", Parameter()); }),
              HasSubstr("undefined parameter"));
}

TEST(Module, RunsHooksInOrderAndLetsThemReplaceValues) {
  std::vector<std::string> log;
  Bare module;
  module.log = &log;
  module.AddForwardPreHook([&](Module&, Module::Inputs&) { log.push_back("second"); });
  module.AddForwardPreHook([&](Module&, Module::Inputs& inputs) {
    log.push_back("third");
    inputs.resize(1);
  });
  module.PrependForwardPreHook([&](Module& self, Module::Inputs&) {
    EXPECT_EQ(&self, &module);
    log.push_back("first");
  });
  module.AddForwardHook([&](Module&, const Module::Inputs& inputs, DTensor&) {
    EXPECT_EQ(inputs.size(), 1u);
    log.push_back("after");
  });
  module.AddForwardHook(
      [&](Module&, const Module::Inputs&, DTensor&) { log.push_back("after all"); });
  module.Call({DTensor(), DTensor()});
  EXPECT_THAT(log, ElementsAre("first", "second", "third", "forward", "after", "after all"));
}

TEST(Module, SwitchesTrainingOfAllBelow) {
  Bare root, child;
  root.RegisterChild("child", child);
  EXPECT_TRUE(child.training());
  root.Eval();
  EXPECT_FALSE(root.training());
  EXPECT_FALSE(child.training());
  child.Train();
  EXPECT_FALSE(root.training());
  EXPECT_TRUE(child.training());
}

TEST(Module, OutlivedByItsParentOrOutlivingItIsForgotten) {
  Bare root;
  auto child = std::make_unique<Bare>();
  child->Add("w");
  root.RegisterChild("child", *child);
  EXPECT_EQ(NamesOf(root).size(), 1u);
  child.reset();
  EXPECT_TRUE(NamesOf(root).empty());

  Bare survivor;
  survivor.Add("w");
  {
    Bare parent;
    parent.RegisterChild("child", survivor);
    EXPECT_EQ(survivor.FullName(), "child");
  }
  EXPECT_EQ(survivor.FullName(), "");
  EXPECT_THAT(NamesOf(survivor), ElementsAre("w"));
}

TEST(Module, InitializeNamesWhatHasNoMesh) {
  Bare root, child;
  root.RegisterChild("child", child);
  child.Add("w");
  const absl::Status status = Catch([&] { root.Initialize(1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("child.w f32[3] on meta"));
}

TEST(ModuleList, NumbersItsModulesAndIteratesOverThem) {
  ModuleList<Bare> list;
  for (int i = 0; i < 3; ++i) list.Append(std::make_unique<Bare>()).Add("w");
  EXPECT_THAT(NamesOf(list), ElementsAre("0.w", "1.w", "2.w"));
  int count = 0;
  for (auto& module : list) EXPECT_EQ(&module, &list[count++]);
  EXPECT_EQ(count, 3);
  EXPECT_THROW(list(DTensor()), Error);
}

}  // namespace
}  // namespace shardmesh::nn
