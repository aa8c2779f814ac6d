// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/nn/module_list.h"

namespace shardmesh::nn {
namespace {

using ::testing::AllOf;
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
  Outputs Forward(const Inputs& inputs) override {
    if (log != nullptr) log->push_back("forward");
    return inputs[0];
  }
};

// Calls a function in its forward.
class Calling : public Module {
 public:
  explicit Calling(std::function<Outputs(const Inputs&)> function)
      : function_(std::move(function)) {}

 protected:
  Outputs Forward(const Inputs& inputs) override { return function_(inputs); }

 private:
  std::function<Outputs(const Inputs&)> function_;
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
  root.RegisterBuffer("b", {1}, DType::kI64);
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
  module.AddForwardPreHook([&](Module&, Inputs&) { log.push_back("second"); });
  module.AddForwardPreHook([&](Module&, Inputs& inputs) {
    log.push_back("third");
    inputs.resize(1);
  });
  module.PrependForwardPreHook([&](Module& self, Inputs&) {
    EXPECT_EQ(&self, &module);
    log.push_back("first");
  });
  module.AddForwardHook([&](Module&, const Inputs& inputs, Outputs&) {
    EXPECT_EQ(inputs.size(), 1u);
    log.push_back("after");
  });
  module.AddForwardHook([&](Module&, const Inputs&, Outputs&) { log.push_back("after all"); });
  HookHandle pre = module.AddForwardPreHook([&](Module&, Inputs&) { log.push_back("removed"); });
  HookHandle post =
      module.AddForwardHook([&](Module&, const Inputs&, Outputs&) { log.push_back("removed"); });
  pre.Remove();
  post.Remove();
  module.Call({DTensor(), DTensor()});
  EXPECT_THAT(log, ElementsAre("first", "second", "third", "forward", "after", "after all"));
}

TEST(Module, HooksMayRegisterOthersForTheNextCall) {
  std::vector<std::string> log;
  Bare module;
  module.log = &log;
  const auto note = [&](const std::string& what) { log.push_back(what); };
  std::vector<HookHandle> handles;
  // More than fit beside what is registered: the lists grow while they are run.
  handles.push_back(
      module.AddForwardPreHook([&, captured = std::string(100, 'x')](Module&, Inputs&) {
        handles[0].Remove();
        for (int i = 0; i < 9; ++i) {
          module.PrependForwardPreHook([&](Module&, Inputs&) { note("earlier"); }).Remove();
          module.AddForwardPreHook([&](Module&, Inputs&) { note("later"); }).Remove();
        }
        module.PrependForwardPreHook([&](Module&, Inputs&) { note("new first"); });
        module.AddForwardPreHook([&](Module&, Inputs&) { note("new last"); });
        module.AddForwardHook([&](Module&, const Inputs&, Outputs&) { note("after"); });
        note(captured.substr(99));
      }));
  module.AddForwardPreHook([&](Module&, Inputs&) { note("second"); });
  module.Call({DTensor()});
  EXPECT_THAT(log, ElementsAre("x", "second", "forward", "after"));
  log.clear();
  module.Call({DTensor()});
  EXPECT_THAT(log, ElementsAre("new first", "second", "new last", "forward", "after"));
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

TEST(Inputs, CarryNamedArgumentsThatTheCalleeReads) {
  int counter = 0;
  Calling module([](const Inputs& inputs) -> Outputs {
    ++*inputs.Argument<int*>("counter");
    EXPECT_EQ(inputs.ArgumentOr<double>("scale", 2.5), 0.5);
    EXPECT_EQ(inputs.ArgumentOr<std::string>("absent", "default"), "default");
    EXPECT_FALSE(inputs.Optional(1));
    return {};
  });
  module.Call(Inputs{DTensor()}.With("counter", &counter).With("scale", 0.5));
  EXPECT_EQ(counter, 1);
}

TEST(Inputs, NameTheModuleAndTheArgumentThatDoesNotFit) {
  Bare root;
  Calling child([](const Inputs& inputs) -> Outputs {
    inputs.Argument<int64_t>("position");
    return {};
  });
  root.RegisterChild("child", child);
  EXPECT_THAT(MessageOf([&] { child.Call({}); }),
              AllOf(HasSubstr("module child"), HasSubstr("'position'"), HasSubstr("not passed")));
  EXPECT_THAT(MessageOf([&] { child.Call(Inputs{}.With("position", 1.5)); }),
              AllOf(HasSubstr("'position' of type double"), HasSubstr("reads it as long")));
  EXPECT_THAT(MessageOf([&] {
                child.Call(Inputs{}.With("position", int64_t{1}).With("positoin", int64_t{1}));
              }),
              AllOf(HasSubstr("module child"), HasSubstr("'positoin'"), HasSubstr("has read")));
  EXPECT_THAT(MessageOf([&] { (void)Inputs{}.With("a", 1).With("a", 2); }), HasSubstr("twice"));
}

TEST(Outputs, AreSeveralOrExactlyOne) {
  Bare root;
  Calling two([](const Inputs&) -> Outputs { return {DTensor(), DTensor()}; });
  root.RegisterChild("two", two);
  EXPECT_EQ(two.Call({}).size(), 2u);
  EXPECT_THAT(MessageOf([&] { two(DTensor()); }),
              AllOf(HasSubstr("module two has returned 2 results"), HasSubstr("use Call")));
  EXPECT_THAT(MessageOf([&] { (void)two.Call({})[2]; }), HasSubstr("result 2"));
}

TEST(Module, FindsDescendantsByName) {
  Bare root, left, leaf;
  root.RegisterChild("left", left);
  left.RegisterChild("leaf", leaf);
  EXPECT_EQ(root.Find(""), &root);
  EXPECT_EQ(root.Find("left"), &left);
  EXPECT_EQ(root.Find("left.leaf"), &leaf);
  EXPECT_EQ(left.Find("leaf"), &leaf);
  for (const char* name : {"right", "left.", "leaf", "left.leaf.x", ".left", "left..leaf"})
    EXPECT_EQ(root.Find(name), nullptr) << name;
}

// Replaces a module by one that wraps it.
class Wrapping : public Bare {
 public:
  explicit Wrapping(Bare& base) : base_(base) {
    RegisterChild("base", base);
    Add("extra");
  }

 protected:
  Outputs Forward(const Inputs& inputs) override {
    log->push_back("before");
    Outputs outputs = base_.Call(inputs);
    log->push_back("after");
    return outputs;
  }

 private:
  Bare& base_;
};

TEST(Module, SendsCallsOfAReplacedChildToItsReplacement) {
  std::vector<std::string> log;
  Bare root, child;
  root.RegisterChild("child", child);
  child.Add("w");
  child.log = &log;
  auto replacement = std::make_unique<Wrapping>(child);
  replacement->log = &log;
  root.ReplaceChild("child", std::move(replacement));
  for (int i = 0; i < 2; ++i) child(DTensor());
  EXPECT_THAT(log, ElementsAre("before", "forward", "after", "before", "forward", "after"));
  EXPECT_THAT(NamesOf(root), ElementsAre("child.extra", "child.base.w"));
  EXPECT_EQ(child.FullName(), "child.base");
  EXPECT_THAT(MessageOf([&] { root.ReplaceChild("no", std::make_unique<Bare>()); }),
              HasSubstr("'no'"));
  EXPECT_THAT(MessageOf([&] { root.ReplaceChild("child", nullptr); }), HasSubstr("null"));
}

TEST(Module, ReachesTheReplacementAgainAfterItHasThrown) {
  Bare root, child;
  root.RegisterChild("child", child);
  int calls = 0;
  root.ReplaceChild("child", std::make_unique<Calling>([&](const Inputs&) -> Outputs {
                      ++calls;
                      ThrowInvalid("in the replacement");
                    }));
  for (int i = 0; i < 2; ++i) EXPECT_THROW(child(DTensor()), Error);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(child.FullName(), "");
}

TEST(Module, UsesAnotherForwardBetweenItsHooks) {
  std::vector<std::string> log;
  Bare module;
  module.log = &log;
  module.AddForwardPreHook([&](Module&, Inputs&) { log.push_back("pre"); });
  module.SetForward([&](const Inputs& inputs) -> Outputs {
    log.push_back("other");
    return inputs[0];
  });
  module.SetCallWrapper([&](Module&, Inputs inputs, const auto& call) {
    log.push_back("wrapper");
    return call(std::move(inputs));
  });
  module(DTensor());
  EXPECT_THAT(log, ElementsAre("wrapper", "pre", "other"));
  log.clear();
  module.SetForward(nullptr);
  module.SetCallWrapper(nullptr);
  module(DTensor());
  EXPECT_THAT(log, ElementsAre("pre", "forward"));
}

TEST(Module, PrintsItsTree) {
  Bare root, child, tied;
  root.RegisterChild("child", child);
  root.RegisterChild("tied", tied);
  const Parameter weight = child.Add("weight");
  tied.RegisterParameter("weight", weight);
  tied.RegisterBuffer("count", {}, DType::kI64);
  EXPECT_EQ(root.ToString(),
            "Bare\n"
            "  child: Bare\n"
            "    weight f32[3] on meta\n"
            "  tied: Bare\n"
            "    weight f32[3] on meta, is child.weight\n"
            "    count i64[] on meta\n");
}

TEST(Module, ListsBuffersApartFromParameters) {
  Bare root, child;
  root.RegisterChild("child", child);
  child.Add("w");
  Buffer mean = child.RegisterBuffer("mean", {3}, DType::kF32);
  child.RegisterBuffer("table", {2}, DType::kI32, Init::Constant(7), /*is_persistent=*/false);
  EXPECT_THAT(NamesOf(root), ElementsAre("child.w"));
  const std::vector<Module::NamedBuffer> buffers = root.NamedBuffers();
  ASSERT_EQ(buffers.size(), 2u);
  EXPECT_EQ(buffers[0].buffer, mean);
  EXPECT_TRUE(buffers[0].is_persistent);
  EXPECT_EQ(buffers[1].name, "child.table");
  EXPECT_EQ(buffers[1].buffer.name(), "child.table");
  EXPECT_FALSE(buffers[1].is_persistent);
  EXPECT_FALSE(mean.requires_grad());
  EXPECT_THAT(MessageOf([&] { mean.set_requires_grad(true); }), HasSubstr("child.mean"));
  EXPECT_THAT(MessageOf([&] { Buffer({1}, DType::kI32, Init::Normal(0, 1)); }), HasSubstr("i32"));
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
