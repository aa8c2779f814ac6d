// SPDX-License-Identifier: Apache-2.0
//
// For tests: valid and invalid safetensors files, assembled from text and bytes without any code of
// the reader.
//
//   SafetensorsBuilder builder;
//   builder.Add("x", "F32", {2}, BytesOf<float>({1.5f, -2.0f}));
//   std::string path = WriteTestFile("two.safetensors", builder.Build());
#ifndef SHARDMESH_CHECKPOINT_TESTING_SAFETENSORS_BUILDER_H_
#define SHARDMESH_CHECKPOINT_TESTING_SAFETENSORS_BUILDER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shardmesh {

/// The bytes of `values`, concatenated.
template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  std::string bytes;
  for (const T& value : values) {
    char element[sizeof(T)];
    std::memcpy(element, &value, sizeof(T));
    bytes.append(element, sizeof(T));
  }
  return bytes;
}

/// The length of `header`, `header` and `data`, none of which need be valid.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  return BytesOf<uint64_t>({header.size()}) + header + data;
}

class SafetensorsBuilder {
 public:
  SafetensorsBuilder& Add(const std::string& name, const std::string& dtype,
                          const std::vector<int64_t>& shape, const std::string& bytes) {
    entries_.push_back(absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[",
                                    absl::StrJoin(shape, ","), "],\"data_offsets\":[", data_.size(),
                                    ",", data_.size() + bytes.size(), "]}"));
    data_ += bytes;
    return *this;
  }

  std::string Header() const { return absl::StrCat("{", absl::StrJoin(entries_, ","), "}"); }
  const std::string& data() const { return data_; }
  std::string Build() const { return SafetensorsBytes(Header(), data_); }

 private:
  std::vector<std::string> entries_;
  std::string data_;
};

/// A folder for the running test alone, empty at its first call.
inline std::string TestFolder() {
  static std::string current;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder =
      absl::StrCat(::testing::TempDir(), test->test_suite_name(), ".", test->name());
  if (folder != current) std::filesystem::remove_all(folder);
  current = folder;
  std::filesystem::create_directories(folder);
  return folder;
}

/// Writes a new file into TestFolder() and returns its path.
inline std::string WriteTestFile(const std::string& name, const std::string& bytes) {
  const std::string path = absl::StrCat(TestFolder(), "/", name);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::filesystem::remove(path);  // Some file systems are slow to truncate.
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Expects this code, and each of `parts` in the message.
inline void ExpectError(const absl::Status& status, absl::StatusCode code,
                        const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(part));
  }
}

}  // namespace shardmesh

#endif  // SHARDMESH_CHECKPOINT_TESTING_SAFETENSORS_BUILDER_H_
