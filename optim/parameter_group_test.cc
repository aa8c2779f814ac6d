// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/parameter_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/testing/parameters.h"

namespace shardmesh::optim {
namespace {

using ::testing::ElementsAre;
using testing::ErrorOf;
using ::testing::HasSubstr;

nn::Parameter Named(const std::string& name, const Dims& shape) {
  nn::Parameter parameter(shape, DType::kF32, nn::Init::Constant(0));
  parameter.set_name(name);
  return parameter;
}

std::vector<nn::Parameter> Model() {
  return {Named("embed.weight", {7, 3}),       Named("layers.0.norm.weight", {3}),
          Named("layers.0.up.weight", {5, 3}), Named("layers.0.up.bias", {5}),
          Named("layers.1.up.weight", {5, 3}), Named("scale", {})};
}

std::vector<int> GroupsOf(const Optimizer& optimizer) {
  std::vector<int> groups;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i)
    groups.push_back(optimizer.group_of(i));
  return groups;
}

TEST(ParameterGroup, TakesNormsAndBiasesByOneLine) {
  const AdamW optimizer(
      Model(), {.lr = 0.5, .weight_decay = 0.1},
      {{.parameters = IsNormOrBias, .change = [](auto& o) { o.weight_decay = 0; }}});
  EXPECT_THAT(GroupsOf(optimizer), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_EQ(optimizer.options(0).weight_decay, 0.1);
  EXPECT_EQ(optimizer.options(1).weight_decay, 0);
  EXPECT_EQ(optimizer.options(1).lr, 0.5);  // All else is the optimizer's.
}

TEST(ParameterGroup, IsTheFirstThatMatches) {
  const AdamW optimizer(
      Model(), {.lr = 0.5},
      {{.parameters = {"layers.*.up.bias", "embed.*"}, .change = [](auto& o) { o.lr *= 0.5; }},
       {.parameters = IsNormOrBias, .change = nullptr},
       {.parameters = {"layers.*.*.weight"}, .change = [](auto& o) { o.beta1 = 0.25; }}});
  EXPECT_THAT(GroupsOf(optimizer), ElementsAre(1, 2, 3, 1, 3, 2));
  EXPECT_EQ(optimizer.num_groups(), 4);
  EXPECT_EQ(optimizer.lr(1), 0.25);
  EXPECT_EQ(optimizer.options(3).beta1, 0.25);
}

TEST(ParameterGroup, MayLeaveNothingToTheDefaults) {
  const AdamW optimizer(Model(), {},
                        {{[](const nn::Parameter&) { return true; }, nullptr},
                         {[](const nn::Parameter&) { return false; }, nullptr}});
  EXPECT_THAT(GroupsOf(optimizer), ElementsAre(1, 1, 1, 1, 1, 1));
}

TEST(ParameterGroup, NamesWhatMatchesNothing) {
  const auto error_of = [](const std::vector<ParameterGroup<AdamWOptions>>& groups) {
    return ErrorOf([&] { AdamW(Model(), {}, groups); });
  };
  EXPECT_EQ(error_of({{IsNormOrBias, nullptr}, {{"scale", "head.*"}, nullptr}}),
            "AdamW: pattern 'head.*' of parameter group 2 matches no parameter");
  EXPECT_THAT(error_of({{"layers.*", nullptr}}), HasSubstr("'layers.*'"));  // Stops at dots.
  EXPECT_EQ(error_of({{.parameters = {"scale"}, .change = [](auto& o) { o.beta2 = 1; }}}),
            "AdamW: beta2 is 1, expected 0 to below 1");
}

TEST(ParameterGroup, HasARateOfItsOwn) {
  AdamW optimizer(Model(), {.lr = 0.5}, {{IsNormOrBias, nullptr}});
  optimizer.set_lr(1, 0.125);
  EXPECT_EQ(optimizer.lr(0), 0.5);
  EXPECT_EQ(optimizer.lr(1), 0.125);
  optimizer.set_lr(0.25);
  EXPECT_EQ(optimizer.lr(0), 0.25);
  EXPECT_EQ(optimizer.lr(1), 0.25);
  EXPECT_EQ(ErrorOf([&] { optimizer.lr(2); }), "AdamW: there is no group 2 of 2");
  EXPECT_EQ(ErrorOf([&] { optimizer.options(2); }), "AdamW: there is no group 2 of 2");
  EXPECT_EQ(ErrorOf([&] { optimizer.set_lr(-1, 1); }), "AdamW: there is no group -1 of 2");
  EXPECT_EQ(ErrorOf([&] { optimizer.set_lr(1, -1); }),
            "AdamW: lr is -1, expected 0 or more, and finite");
  EXPECT_EQ(optimizer.lr(1), 0.25);
}

}  // namespace
}  // namespace shardmesh::optim
