// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/nn/embedding.h"
#include "shardmesh/nn/linear.h"

namespace shardmesh::nn {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// embed.weight [5, 3], tied to head.weight, and bias.bias [7].
class Tiny : public Module {
 public:
  explicit Tiny(DType dtype = DType::kF32)
      : embed_(5, 3, dtype),
        head_(embed_.weight(), {.dtype = dtype}),
        other_(2, 7, {.bias = true, .dtype = dtype}) {
    RegisterChild("embed", embed_);
    RegisterChild("head", head_);
    RegisterChild("other", other_);
  }

 protected:
  Outputs Forward(const Inputs& inputs) override { return inputs[0]; }

 private:
  Embedding embed_;
  Linear head_;
  Linear other_;
};

/// Mixed signs, none alike, exact in bf16.
std::vector<float> Numbers(int count, float start) {
  std::vector<float> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back((i % 2 == 0 ? 1 : -1) * (start + i));
  return numbers;
}

struct Entry {
  std::string name;
  Dims shape;
  std::vector<float> values;
  std::string dtype = "F32";  ///< Any of 4 bytes.
};

/// Writes a safetensors file and returns its path.
std::string WriteFile(const std::vector<Entry>& entries) {
  std::string header, data;
  for (const Entry& entry : entries) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(entry.values.data()), entry.values.size() * 4);
    absl::StrAppend(&header, header.empty() ? "{" : ",", "\"", entry.name, "\":{\"dtype\":\"",
                    entry.dtype, "\",\"shape\":", entry.shape.ToString(), ",\"data_offsets\":[",
                    begin, ",", data.size(), "]}");
  }
  header += "}";
  const uint64_t length = header.size();
  const std::string path =
      absl::StrCat(::testing::TempDir(),
                   ::testing::UnitTest::GetInstance()->current_test_info()->name(), ".safetensors");
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header << data;
  return path;
}

std::vector<Entry> TinyEntries(const std::string& embedding_name) {
  return {{"other.weight", {7, 2}, Numbers(14, 20)},
          {"other.bias", {7}, Numbers(7, 50)},
          {embedding_name, {5, 3}, Numbers(15, 1)}};
}

std::string WriteTiny(const std::string& embedding_name) {
  return WriteFile(TinyEntries(embedding_name));
}

CheckpointReader OpenOrDie(const std::string& path) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
  ThrowIfError(reader.status());
  return *std::move(reader);
}

void Place(Module& module, const DeviceMesh& mesh, const Placement& placement) {
  for (Parameter& parameter : module.Parameters()) {
    parameter.Place(mesh, Layout::Make(mesh.shape(), {placement}, parameter.shape()));
  }
}

void ExpectTinyValues(const Module& model) {
  const std::vector<std::vector<float>> expected = {Numbers(15, 1), Numbers(14, 20),
                                                    Numbers(7, 50)};
  const std::vector<Parameter> parameters = model.Parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(FullTensor(parameters[i].data()).ToVector<float>(), expected[i])
        << parameters[i].ToString();
  }
}

TEST(LoadParameters, GivesEachRankItsBoxAndReadsNoMore) {
  const std::string path = WriteTiny("embed.weight");
  for (const Placement& placement : {Shard(0), Replicate()}) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      const absl::Status status = RunRanks(3, [&](Communicator& world) {
        const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 3}});
        Tiny model(dtype);
        Place(model, mesh, placement);
        const CheckpointReader checkpoint = OpenOrDie(path);
        const int64_t header = checkpoint.bytes_read();
        ThrowIfError(LoadParameters(model, checkpoint, {.allow_cast = true}));
        ExpectTinyValues(model);
        int64_t elements = 0;
        for (const Parameter& parameter : model.Parameters()) {
          elements += parameter.data().local().NumElements();
          EXPECT_TRUE(parameter.data().RequiresGrad());
        }
        EXPECT_EQ(checkpoint.bytes_read() - header, elements * 4);
        EXPECT_EQ(mesh.context().allocator()->stats(MemoryCategory::kParameters).bytes,
                  elements * SizeOf(dtype));
      });
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(LoadParameters, FindsATiedParameterUnderAnyOfItsNames) {
  const std::string path = WriteTiny("head.weight");
  const absl::Status status = RunRanks(1, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
    Tiny model;
    Place(model, mesh, Replicate());
    ThrowIfError(LoadParameters(model, OpenOrDie(path)));
    ExpectTinyValues(model);
  });
  EXPECT_TRUE(status.ok()) << status;
}

/// What loading `entries` gives on each of `ranks` ranks, rows sharded over them.
std::vector<absl::Status> LoadOnRanks(int ranks, const std::vector<Entry>& entries, DType dtype,
                                      const LoadOptions& options) {
  const std::string path = WriteFile(entries);
  std::vector<absl::Status> statuses(ranks);
  const absl::Status status = RunRanks(ranks, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", ranks}});
    Tiny model(dtype);
    Place(model, mesh, Shard(0));
    const absl::Status loaded = LoadParameters(model, OpenOrDie(path), options);
    statuses[world.rank()] = loaded;
    if (ranks == 1 && loaded.ok()) ExpectTinyValues(model);
  });
  EXPECT_TRUE(status.ok()) << status;
  return statuses;
}

// The second tensor was dropped, whatever was in it.
TEST(LoadParameters, ComparesAllTensorsOfATiedParameter) {
  std::vector<Entry> entries = TinyEntries("embed.weight");
  entries.push_back({"head.weight", {5, 3}, Numbers(15, 1)});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int ranks : {1, 3, 7}) {
      for (const absl::Status& status : LoadOnRanks(ranks, entries, dtype, {.allow_cast = true})) {
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
  // The rank that has the row tells; 13 is element [4, 0] of the last of 3 ranks with 2, 2, 1 rows.
  for (const int64_t element : {0, 4, 13, 14}) {
    entries.back().values = Numbers(15, 1);
    entries.back().values[element] += 0.5f;
    const float value = Numbers(15, 1)[element];
    for (const int ranks : {1, 2, 3}) {
      const std::vector<absl::Status> statuses =
          LoadOnRanks(ranks, entries, DType::kF32, /*options=*/{});
      int64_t failures = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        if (statuses[rank].ok()) continue;
        ++failures;
        EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kInvalidArgument);
        EXPECT_EQ(rank, element / 3 / ((5 + ranks - 1) / ranks));
        EXPECT_THAT(std::string(statuses[rank].message()),
                    HasSubstr(absl::StrCat(
                        ".safetensors': tensors 'embed.weight' and 'head.weight' are one parameter "
                        "of the model, but differ: element [",
                        element / 3, ",", element % 3, "] is ", value, " in the first and ",
                        value + 0.5f, " in the second")));
      }
      EXPECT_EQ(failures, 1);
    }
  }
  // Its shape was not looked at either.
  entries.back() = {"head.weight", {3, 5}, Numbers(15, 1)};
  for (const absl::Status& status : LoadOnRanks(2, entries, DType::kF32, /*options=*/{})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("'head.weight' is f32[3,5], expected [5"));
  }
}

/// A scalar and a tensor of more elements than are compared at once, each with two names.
class Twins : public Module {
 public:
  explicit Twins(const Dims& shape) {
    const Parameter scale = RegisterParameter("a_scale", Dims{}, DType::kF32, Init::Constant(0));
    RegisterParameter("b_scale", scale);
    RegisterParameter("b_weight",
                      RegisterParameter("a_weight", shape, DType::kF32, Init::Constant(0)));
  }

 protected:
  Outputs Forward(const Inputs& inputs) override { return inputs[0]; }
};

TEST(LoadParameters, ComparesTiedTensorsPieceByPiece) {
  for (const Dims& shape : {Dims{3, 200'001}, Dims{200'001, 3}, Dims{600'003}, Dims{3, 1, 200'001},
                            Dims{2, 3, 100'001}, Dims{2, 3, 7, 9, 1601}}) {
    const int64_t count = shape.NumElements();
    std::vector<Entry> entries = {
        {"a_scale", {}, {7}},
        {"b_scale", {}, {7}},
        {"a_weight", shape, Numbers(static_cast<int>(count), 1)},
        {"b_weight", shape, Numbers(static_cast<int>(count), 1)},
    };
    for (const int64_t element : {int64_t{-1}, int64_t{262'144}, int64_t{262'143}, count - 1}) {
      if (element >= 0) entries[3].values[element] = 0.25f;
      const std::string path = WriteFile(entries);
      if (element >= 0) entries[3].values[element] = entries[2].values[element];
      const absl::Status status = RunRanks(1, [&](Communicator& world) {
        const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
        Twins model(shape);
        Place(model, mesh, Replicate());
        const CheckpointReader checkpoint = OpenOrDie(path);
        const int64_t header = checkpoint.bytes_read();
        mesh.context().allocator()->ResetPeaks();
        const absl::Status loaded = LoadParameters(model, checkpoint);
        EXPECT_LE(mesh.context().allocator()->stats(MemoryCategory::kScratch).peak_bytes, 1 << 20);
        EXPECT_EQ(loaded.ok(), element < 0) << loaded;
        if (loaded.ok()) {
          EXPECT_EQ(checkpoint.bytes_read() - header, 2 * 4 * (count + 1));
        } else {
          std::string position;
          for (int64_t d = shape.size() - 1, rest = element; d >= 0; rest /= shape[d--]) {
            position = absl::StrCat(rest % shape[d], position.empty() ? "" : ",", position);
          }
          EXPECT_THAT(std::string(loaded.message()),
                      HasSubstr(absl::StrCat("differ: element [", position, "] is ")));
          EXPECT_THAT(std::string(loaded.message()), HasSubstr(" and 0.25 in the second"));
        }
      });
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

// It was converted without a word: 16777217 of an i32 came as 16777216.
TEST(LoadParameters, ConvertsOnlyWhenAsked) {
  std::vector<Entry> entries = TinyEntries("embed.weight");
  for (const absl::Status& status : LoadOnRanks(2, entries, DType::kBF16, /*options=*/{})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    for (const char* part :
         {"of another dtype: 'embed.weight' is f32[5,3], expected bf16, ",
          "'other.weight' is f32[7,2], expected bf16 (LoadOptions::allow_cast converts)"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }
  entries[1].dtype = "I32";  // The bits of -53.0f and the like: large integers.
  const std::vector<absl::Status> plain = LoadOnRanks(1, entries, DType::kF32, /*options=*/{});
  EXPECT_THAT(std::string(plain[0].message()), HasSubstr("'other.bias' is i32[7], expected f32"));
  EXPECT_THAT(std::string(plain[0].message()), Not(HasSubstr("embed.weight")));
  // Only the rank that has the element sees it.
  entries = TinyEntries("embed.weight");
  entries[0].values[13] = 1e10f;
  const std::vector<absl::Status> cast = LoadOnRanks(2, entries, DType::kF16, {.allow_cast = true});
  EXPECT_TRUE(cast[0].ok()) << cast[0];
  EXPECT_EQ(cast[1].code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(cast[1].message()),
              HasSubstr("tensor 'other.weight' (f32[7,2]): element 13 (row-major) is 10000000000, "
                        "which would become infinite in f16"));
  // No cast helps.
  entries = TinyEntries("embed.weight");
  entries[1].dtype = "U32";
  for (const bool allow_cast : {false, true}) {
    const auto none = LoadOnRanks(1, entries, DType::kF32, {.allow_cast = allow_cast});
    EXPECT_EQ(none[0].code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(none[0].message()),
                HasSubstr("of a dtype that cannot be read: 'other.bias' is U32[7]"));
  }
}

/// One module under two names, with a buffer.
class SharedBuffer : public Module {
 public:
  SharedBuffer() {
    RegisterChild("one", inner_);
    RegisterChild("two", inner_);
  }

 protected:
  Outputs Forward(const Inputs& inputs) override { return inputs[0]; }

 private:
  class Inner : public Module {
   public:
    Inner() {
      RegisterParameter("p", {2}, DType::kF32, Init::Constant(0));
      RegisterBuffer("state", {2}, DType::kF32, Init::Constant(0), /*is_persistent=*/true);
    }

   protected:
    Outputs Forward(const Inputs& inputs) override { return inputs[0]; }
  };
  Inner inner_;
};

// Only the first name of a buffer was known.
TEST(LoadParameters, KnowsAllNamesOfABuffer) {
  std::vector<Entry> entries = {
      {"one.p", {2}, {1, 2}}, {"one.state", {2}, {3, -4}}, {"two.state", {2}, {3, -4}}};
  for (const bool same : {true, false}) {
    entries[2].values[1] = same ? -4 : 5;
    const std::string path = WriteFile(entries);
    const absl::Status status = RunRanks(1, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
      SharedBuffer model;
      Place(model, mesh, Replicate());
      const absl::Status loaded = LoadParameters(model, OpenOrDie(path));
      EXPECT_EQ(loaded.ok(), same) << loaded;
      if (same) {
        EXPECT_EQ(FullTensor(model.NamedBuffers()[0].buffer.data()).ToVector<float>(),
                  (std::vector<float>{3, -4}));
      } else {
        EXPECT_THAT(std::string(loaded.message()),
                    HasSubstr("'one.state' and 'two.state' are one parameter of the model, but "
                              "differ: element [1] is -4 in the first and 5 in the second"));
      }
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(LoadParameters, OverwritesValuesInPlace) {
  const std::string path = WriteTiny("embed.weight");
  const absl::Status status = RunRanks(2, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    Tiny model;
    Place(model, mesh, Shard(0));
    model.Initialize(1);
    const DTensor before = model.Parameters()[0].data();
    const int64_t version = before.local().storage()->version();
    ThrowIfError(LoadParameters(model, OpenOrDie(path)));
    ExpectTinyValues(model);
    EXPECT_EQ(model.Parameters()[0].data().impl(), before.impl());
    EXPECT_GT(before.local().storage()->version(), version);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(LoadParameters, ListsWhatDoesNotFitAndReadsNothing) {
  std::vector<Entry> entries = {{"embed.weight", {3, 5}, Numbers(15, 1)},
                                {"other.weight", {7, 2}, Numbers(14, 1)}};
  for (int i = 0; i < 10; ++i) entries.push_back({absl::StrCat("extra", i), {1}, {1}});
  const std::string path = WriteFile(entries);
  const absl::Status status = RunRanks(1, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
    Tiny model;
    EXPECT_THROW(LoadParameters(model, OpenOrDie(path)).IgnoreError(), Error);
    Place(model, mesh, Replicate());
    const absl::Status strict = LoadParameters(model, OpenOrDie(path));
    EXPECT_EQ(strict.code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& part :
         {path, std::string("missing: 'other.bias'"),
          std::string("not expected: 'extra0', 'extra1', "), std::string("'extra7' and 2 more"),
          std::string("'embed.weight' is f32[3,5], expected [5,3]")}) {
      EXPECT_THAT(std::string(strict.message()), HasSubstr(part));
    }
    const absl::Status lenient = LoadParameters(model, OpenOrDie(path), {.allow_unexpected = true});
    EXPECT_THAT(std::string(lenient.message()), Not(HasSubstr("extra")));
    EXPECT_THAT(std::string(lenient.message()), HasSubstr("missing: 'other.bias'"));
    EXPECT_FALSE(model.Parameters()[1].IsMaterialized());
  });
  EXPECT_TRUE(status.ok()) << status;
}

// They went into the message as they were.
TEST(LoadParameters, QuotesAndCutsNamesOfTheCheckpoint) {
  std::vector<Entry> entries = TinyEntries("embed.weight");
  const std::string odd = R"(\u001b[2J\n)" + std::string(5000, 'x');
  for (int i = 0; i < 10; ++i) entries.push_back({absl::StrCat(odd, i), {1}, {1}});
  const std::string path = WriteFile(entries);
  const absl::Status status = RunRanks(1, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
    Tiny model;
    Place(model, mesh, Replicate());
    const std::string message(LoadParameters(model, OpenOrDie(path)).message());
    EXPECT_THAT(message, HasSubstr(R"(not expected: '\x1b[2J\nxxx)"));
    EXPECT_THAT(message, HasSubstr("x0' (5006 bytes), "));
    EXPECT_LT(message.size(), 1500u);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(LoadParameters, PassesOverTheUnexpectedWhenAsked) {
  std::vector<Entry> entries = TinyEntries("embed.weight");
  entries.push_back({"rotary.inv_freq", {2}, {1, 2}});
  const std::string path = WriteFile(entries);
  const absl::Status status = RunRanks(1, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
    Tiny model;
    Place(model, mesh, Replicate());
    EXPECT_FALSE(LoadParameters(model, OpenOrDie(path)).ok());
    ThrowIfError(LoadParameters(model, OpenOrDie(path), {.allow_unexpected = true}));
    ExpectTinyValues(model);
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace shardmesh::nn
