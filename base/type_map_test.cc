// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/type_map.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace shardmesh {
namespace {

struct Counter {
  int count = 0;
};

struct Names {
  std::string first = "none";
  std::shared_ptr<int> alive = std::make_shared<int>(7);
};

TEST(TypeMap, KeepsOneObjectAType) {
  TypeMap locals;
  locals.Get<Counter>().count = 3;
  EXPECT_EQ(locals.Get<Names>().first, "none");
  locals.Get<Names>().first = "dp";
  EXPECT_EQ(locals.Get<Counter>().count, 3);
  EXPECT_EQ(locals.Get<Names>().first, "dp");
  EXPECT_EQ(TypeMap().Get<Counter>().count, 0);
}

TEST(TypeMap, ReferencesStayValidWhileOthersAreAdded) {
  TypeMap locals;
  Counter& counter = locals.Get<Counter>();
  locals.Get<Names>();
  locals.Get<std::string>();
  EXPECT_EQ(&counter, &locals.Get<Counter>());
}

TEST(TypeMap, DestroysItsObjects) {
  std::weak_ptr<int> alive;
  {
    TypeMap locals;
    alive = locals.Get<Names>().alive;
    EXPECT_FALSE(alive.expired());
  }
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace shardmesh
