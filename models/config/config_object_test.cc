// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/config/config_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace shardmesh::models {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

ConfigObject ParseOrDie(const std::string& text) {
  absl::StatusOr<ConfigObject> object = ConfigObject::Parse(text, "c.json");
  EXPECT_TRUE(object.ok()) << object.status();
  return *std::move(object);
}

TEST(ConfigObject, TakesNullForAbsent) {
  ConfigObject object = ParseOrDie(R"({"a": null, "b": null, "unknown": null})");
  int64_t number = 7;
  std::optional<double> maybe;
  object.Read("a", number);
  object.Read("b", maybe);
  object.Only("b", 0.0);
  object.Only("b", "text");
  EXPECT_EQ(number, 7);
  EXPECT_FALSE(maybe.has_value());
  EXPECT_TRUE(object.Finish("it").ok()) << object.status();
  object.Require("a");
  EXPECT_EQ(object.status().message(), "'c.json': a is missing");
}

TEST(ConfigObject, RefusesFieldsThatNobodyAskedFor) {
  ConfigObject object = ParseOrDie(R"({"inner": {"x": 1, "y": -2.5}, "a\n": [1]})");
  ConfigObject inner = object.Child("inner");
  int64_t x = 0;
  inner.Read("x", x);
  EXPECT_EQ(x, 1);
  EXPECT_EQ(inner.Finish("the inner one"),
            absl::InvalidArgumentError(
                "'c.json': inner: unknown fields: 'y' is -2.5; the inner one has none of these, "
                "and they may change what is computed (remove them if they do not)"));
  EXPECT_THAT(std::string(object.Finish("it").message()),
              HasSubstr(R"('c.json': unknown fields: 'a\n' is [1]; it has none of these)"));
}

TEST(ConfigObject, KeepsTheFirstError) {
  ConfigObject object = ParseOrDie(R"({"a": "x", "b": 2, "c": 3})");
  bool flag = true;
  object.Read("a", flag);
  object.Require("z");
  EXPECT_TRUE(flag);
  EXPECT_EQ(object.Finish("it"),
            absl::InvalidArgumentError("'c.json': a is \"x\", expected true or false"));
  EXPECT_EQ(object.Child("b").Finish("it"), absl::OkStatus());
}

TEST(ConfigObject, KnowsAFieldWithOneValue) {
  const struct {
    const char* text;
    nlohmann::json only;
    Code code;
  } rows[] = {
      {"0", 0, Code::kOk},
      {"0.0", 0, Code::kOk},
      {"-0.0", 0, Code::kOk},
      {"1e-30", 0, Code::kUnimplemented},
      {"null", 0, Code::kOk},
      {"false", 0, Code::kInvalidArgument},
      {"true", true, Code::kOk},
      {"false", true, Code::kUnimplemented},
      {"1", true, Code::kInvalidArgument},
      {"null", true, Code::kUnimplemented},
      {"false", false, Code::kOk},
      {"null", false, Code::kOk},
      {"true", false, Code::kUnimplemented},
      {"\"a\"", "a", Code::kOk},
      {"\"A\"", "a", Code::kUnimplemented},
      {"[\"a\"]", "a", Code::kInvalidArgument},
  };
  for (const auto& row : rows) {
    ConfigObject object = ParseOrDie(absl::StrCat("{\"f\": ", row.text, "}"));
    object.Only("f", row.only);
    EXPECT_EQ(object.Finish("it").code(), row.code) << row.text << " " << row.only;
  }
}

// The names in the table of docs/checkpoint_format.md are those that are passed over.
TEST(ConfigObject, PassesOverTheFieldsThatTheDocsList) {
  std::ifstream file("docs/checkpoint_format.md");
  const std::string docs(std::istreambuf_iterator<char>(file), {});
  const size_t begin = docs.find("<!-- harmless fields -->");
  const size_t end = docs.find("<!-- end -->", begin);
  ASSERT_NE(begin, docs.npos);
  ASSERT_NE(end, docs.npos);
  std::set<std::string> listed;
  for (size_t at = docs.find('`', begin); at < end; at = docs.find('`', at + 1)) {
    const size_t close = docs.find('`', at + 1);
    listed.insert(docs.substr(at + 1, close - at - 1));
    at = close;
  }
  EXPECT_GT(listed.size(), 70u);
  EXPECT_EQ(listed, ConfigObject::HarmlessFields());
  for (const std::string& name : listed) {
    ConfigObject object = ParseOrDie(absl::StrCat("{\"", name, "\": 0.5}"));
    object.PassCommonFields();
    EXPECT_TRUE(object.Finish("it").ok()) << object.status();
    ConfigObject misspelt = ParseOrDie(absl::StrCat("{\"", name, "x\": 0.5}"));
    misspelt.PassCommonFields();
    EXPECT_FALSE(misspelt.Finish("it").ok()) << name;
  }
}

}  // namespace
}  // namespace shardmesh::models
