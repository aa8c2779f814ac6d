// SPDX-License-Identifier: Apache-2.0
//
// What every backend must compute, against the definition: values, whatever the world size, counts,
// dtypes and strides. Order and timing are in conformance_order_test.cc, failures in
// failure_test.cc, what a communicator does before it reaches a backend in communicator_test.cc.
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/comm/testing/conformance.h"
#include "shardmesh/comm/testing/sample_tensors.h"
#include "shardmesh/comm/testing/world_under_test.h"

namespace shardmesh {
namespace {

using testing::EmptyOf;
using testing::ExpectElements;
using testing::ExpectReduced;
using testing::Form;
using testing::kForms;
using testing::Mix;
using testing::OnEveryWorld;
using testing::Reduced;
using testing::RunWorld;
using testing::Sample;
using testing::SampleTensor;
using testing::SeedOf;

constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                                DType::kI32, DType::kI64, DType::kBool};
constexpr ReduceOp kReductions[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                    ReduceOp::kProduct};

// Around the world size, and large enough to be cut into parts of odd length.
std::vector<int64_t> Counts(int p) { return {0, 1, p - 1, p, p + 1, 20011}; }

// An uneven, rank-dependent extent, zero for some.
int64_t UnevenExtent(int rank) { return (rank * 7 + 3) % 5; }

// ---- One collective each, all dtypes and counts ---------------------------------------------

template <typename T>
void TestAllGather(Communicator& world, int64_t count) {
  ExecutionContext& context = world.context();
  AllGatherItem item = {
      SampleTensor<T>(context, Form::kContiguous, {count}, SeedOf(world.rank(), 0)), {}};
  for (int m = 0; m < world.size(); ++m)
    item.targets.push_back(Tensor::Empty(context, {count}, kDTypeOf<T>));
  world.AllGather({item}, "test").Wait();
  for (int m = 0; m < world.size(); ++m) {
    ExpectElements<T>(
        item.targets[m], [&](int64_t i) { return Sample<T>(SeedOf(m, 0), i); }, "all-gather");
  }
}

TEST(AllGather, GivesEveryMembersSourceInEveryDTypeAndCount) {
  OnEveryWorld([](Communicator& world) {
    for (const DType dtype : kAllDTypes) {
      for (const int64_t count : Counts(world.size())) {
        VisitDType(dtype, [&]<typename T>() { TestAllGather<T>(world, count); });
      }
    }
  });
}

template <typename T>
void TestReduceScatter(Communicator& world, ReduceOp op, int64_t count) {
  ExecutionContext& context = world.context();
  ReduceScatterItem item = {{}, Tensor::Empty(context, {count}, kDTypeOf<T>)};
  for (int m = 0; m < world.size(); ++m) {
    item.sources.push_back(
        SampleTensor<T>(context, Form::kContiguous, {count}, SeedOf(world.rank(), m)));
  }
  world.ReduceScatter({item}, op, "test").Wait();
  ExpectReduced<T>(item.target, world, op, world.rank(), "reduce-scatter");
}

template <typename T>
void TestAllReduce(Communicator& world, ReduceOp op, int64_t count, bool in_place) {
  const Tensor source =
      SampleTensor<T>(world.context(), Form::kContiguous, {count}, SeedOf(world.rank(), 0));
  const Tensor target = in_place ? source : Tensor::Empty(world.context(), {count}, kDTypeOf<T>);
  world.AllReduce({{source, target}}, op, "test").Wait();
  ExpectReduced<T>(target, world, op, 0, in_place ? "all-reduce in place" : "all-reduce");
}

TEST(Reduction, IsInRankOrderInEveryDTypeReductionAndCount) {
  OnEveryWorld([](Communicator& world) {
    for (const DType dtype : kAllDTypes) {
      if (dtype == DType::kBool) continue;
      for (const ReduceOp op : kReductions) {
        for (const int64_t count : Counts(world.size())) {
          if (count > 100 && op != ReduceOp::kSum && dtype != DType::kF32) continue;
          VisitDType(dtype, [&]<typename T>() {
            if constexpr (!std::is_same_v<T, bool>) {
              TestReduceScatter<T>(world, op, count);
              TestAllReduce<T>(world, op, count, /*in_place=*/false);
              TestAllReduce<T>(world, op, count, /*in_place=*/true);
            }
          });
        }
      }
    }
  });
}

template <typename T>
void TestAllToAll(Communicator& world, int64_t count) {
  ExecutionContext& context = world.context();
  AllToAllItem item;
  for (int m = 0; m < world.size(); ++m) {
    item.sends.push_back(
        SampleTensor<T>(context, Form::kContiguous, {count}, SeedOf(world.rank(), m)));
    item.receives.push_back(Tensor::Empty(context, {count}, kDTypeOf<T>));
  }
  world.AllToAll({item}, "test").Wait();
  for (int m = 0; m < world.size(); ++m) {
    ExpectElements<T>(
        item.receives[m], [&](int64_t i) { return Sample<T>(SeedOf(m, world.rank()), i); },
        "all-to-all");
  }
}

TEST(AllToAll, GivesEveryPairItsTensorInEveryDTypeAndCount) {
  OnEveryWorld([](Communicator& world) {
    for (const DType dtype : kAllDTypes) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{5003}}) {
        VisitDType(dtype, [&]<typename T>() { TestAllToAll<T>(world, count); });
      }
    }
  });
}

TEST(Broadcast, GivesTheRootsTensorsFromEveryRoot) {
  OnEveryWorld([](Communicator& world) {
    for (int root = 0; root < world.size(); ++root) {
      for (const int64_t count : Counts(world.size())) {
        const Tensor a = SampleTensor<float>(world.context(), Form::kContiguous, {count},
                                             SeedOf(world.rank(), root));
        const Tensor b = SampleTensor<int64_t>(world.context(), Form::kColumns, {3, 2},
                                               SeedOf(world.rank(), root));
        world.Broadcast({a, b}, root, "test").Wait();
        ExpectElements<float>(
            a, [&](int64_t i) { return Sample<float>(SeedOf(root, root), i); }, "broadcast");
        ExpectElements<int64_t>(
            b, [&](int64_t i) { return Sample<int64_t>(SeedOf(root, root), i); }, "broadcast");
      }
    }
  });
}

// ---- Uneven counts, strides, batches --------------------------------------------------------

TEST(AllGather, TakesUnevenAndStridedTensorsInBatches) {
  OnEveryWorld([](Communicator& world) {
    for (const Form source_form : kForms) {
      for (const Form target_form : kForms) {
        std::vector<AllGatherItem> batch(3);
        for (int i = 0; i < 3; ++i) {
          const auto shape_of = [i](int m) { return Dims({UnevenExtent(m + i), 3, 17}); };
          batch[i].source = SampleTensor<float>(world.context(), source_form,
                                                shape_of(world.rank()), SeedOf(world.rank(), i));
          for (int m = 0; m < world.size(); ++m) {
            batch[i].targets.push_back(
                EmptyOf(world.context(), target_form, shape_of(m), DType::kF32));
          }
        }
        world.AllGather(batch, "test").Wait();
        for (int i = 0; i < 3; ++i) {
          for (int m = 0; m < world.size(); ++m) {
            ExpectElements<float>(
                batch[i].targets[m], [&](int64_t k) { return Sample<float>(SeedOf(m, i), k); },
                "uneven all-gather");
          }
        }
      }
    }
  });
}

TEST(AllGather, InPlaceIntoViewsOfOneTensor) {
  OnEveryWorld([](Communicator& world) {
    // Large, and columns of one matrix: how S(1) is gathered.
    const int64_t width = 37;
    const Tensor whole = Tensor::Empty(world.context(), {211, width * world.size()}, DType::kF32);
    AllGatherItem item;
    for (int m = 0; m < world.size(); ++m)
      item.targets.push_back(whole.Narrow(1, m * width, width));
    item.source = item.targets[world.rank()];
    testing::FillWithSamples<float>(item.source, SeedOf(world.rank(), 0));
    world.AllGather({item}, "test").Wait();
    for (int m = 0; m < world.size(); ++m) {
      ExpectElements<float>(
          item.targets[m], [&](int64_t i) { return Sample<float>(SeedOf(m, 0), i); }, "in place");
    }
  });
}

TEST(ReduceScatter, TakesUnevenAndStridedTensorsInBatches) {
  OnEveryWorld([](Communicator& world) {
    for (const Form source_form : kForms) {
      for (const Form target_form : kForms) {
        std::vector<ReduceScatterItem> batch(2);
        const auto shape_of = [](int m, int i) { return Dims({5, UnevenExtent(m + i), 7}); };
        for (int i = 0; i < 2; ++i) {
          for (int m = 0; m < world.size(); ++m) {
            batch[i].sources.push_back(SampleTensor<BFloat16>(
                world.context(), source_form, shape_of(m, i), SeedOf(world.rank(), 20 * i + m)));
          }
          batch[i].target =
              EmptyOf(world.context(), target_form, shape_of(world.rank(), i), DType::kBF16);
        }
        world.ReduceScatter(batch, ReduceOp::kSum, "test").Wait();
        for (int i = 0; i < 2; ++i) {
          ExpectElements<BFloat16>(
              batch[i].target,
              [&](int64_t k) {
                return Reduced<BFloat16>(ReduceOp::kSum, world.size(), [&](int m) {
                  return Sample<BFloat16>(SeedOf(m, 20 * i + world.rank()), k);
                });
              },
              "uneven reduce-scatter");
        }
      }
    }
  });
}

TEST(ReduceScatter, TargetMayBeTheOwnPartOfTheSources) {
  OnEveryWorld([](Communicator& world) {
    ReduceScatterItem item;
    for (int m = 0; m < world.size(); ++m) {
      item.sources.push_back(
          SampleTensor<float>(world.context(), Form::kColumns, {31, 101}, SeedOf(world.rank(), m)));
    }
    item.target = item.sources[world.rank()];
    world.ReduceScatter({item}, ReduceOp::kSum, "test").Wait();
    for (int part = 0; part < world.size(); ++part) {
      const bool own = part == world.rank();
      ExpectElements<float>(
          item.sources[part],
          [&](int64_t i) {
            const auto source_of = [&](int m) { return Sample<float>(SeedOf(m, part), i); };
            return own ? Reduced<float>(ReduceOp::kSum, world.size(), source_of)
                       : source_of(world.rank());
          },
          own ? "target" : "a source that is not the target");
    }
  });
}

TEST(ReduceScatter, ReadsAndWritesPastTwoGibibytes) {
  EXPECT_EQ(RunWorld(2,
                     [](Communicator& world) {
                       // Hardly any of this memory is touched.
                       constexpr int64_t kMiddle = int64_t{1} << 29;  // At byte 2^31.
                       const Tensor memory =
                           Tensor::Empty(world.context(), {kMiddle + 3000}, DType::kF32);
                       ReduceScatterItem item;
                       item.sources = {memory.Narrow(0, kMiddle - 500, 1001),
                                       memory.Narrow(0, kMiddle + 600, 7)};
                       item.target = memory.Narrow(0, kMiddle + 700, world.rank() == 0 ? 1001 : 7);
                       for (int m = 0; m < 2; ++m) {
                         testing::FillWithSamples<float>(item.sources[m], SeedOf(world.rank(), m));
                       }
                       world.ReduceScatter({item}, ReduceOp::kSum, "test").Wait();
                       ExpectReduced<float>(item.target, world, ReduceOp::kSum, world.rank(),
                                            "past 2 GiB");
                     }),
            absl::OkStatus());
}

TEST(AllReduce, TakesStridedTensorsInBatchesAndInPlace) {
  OnEveryWorld([](Communicator& world) {
    for (const Form source_form : kForms) {
      for (const Form target_form : kForms) {
        for (const bool in_place : {false, true}) {
          std::vector<AllReduceItem> batch(2);
          const Dims shapes[] = {{3, 5, 7}, {41, 67}};
          for (int i = 0; i < 2; ++i) {
            batch[i].source = SampleTensor<double>(world.context(), source_form, shapes[i],
                                                   SeedOf(world.rank(), i));
            batch[i].target = in_place
                                  ? batch[i].source
                                  : EmptyOf(world.context(), target_form, shapes[i], DType::kF64);
          }
          world.AllReduce(batch, ReduceOp::kSum, "test").Wait();
          for (int i = 0; i < 2; ++i) {
            ExpectReduced<double>(batch[i].target, world, ReduceOp::kSum, i, "strided all-reduce");
          }
        }
      }
    }
  });
}

TEST(AllToAll, TakesUnevenAndStridedTensorsInBatches) {
  OnEveryWorld([](Communicator& world) {
    for (const Form send_form : kForms) {
      for (const Form receive_form : kForms) {
        std::vector<AllToAllItem> batch(2);
        const auto shape_of = [](int from, int to, int i) {
          return Dims({3, UnevenExtent(3 * from + to + i)});
        };
        for (int i = 0; i < 2; ++i) {
          for (int m = 0; m < world.size(); ++m) {
            batch[i].sends.push_back(SampleTensor<int32_t>(world.context(), send_form,
                                                           shape_of(world.rank(), m, i),
                                                           SeedOf(world.rank(), 20 * i + m)));
            batch[i].receives.push_back(
                EmptyOf(world.context(), receive_form, shape_of(m, world.rank(), i), DType::kI32));
          }
        }
        world.AllToAll(batch, "test").Wait();
        for (int i = 0; i < 2; ++i) {
          for (int m = 0; m < world.size(); ++m) {
            ExpectElements<int32_t>(
                batch[i].receives[m],
                [&](int64_t k) { return Sample<int32_t>(SeedOf(m, 20 * i + world.rank()), k); },
                "uneven all-to-all");
          }
        }
      }
    }
  });
}

// Elsewhere CPU collectives treated a strided tensor as contiguous, unseen by tests whose elements
// were all equal.
TEST(StridedTensors, ColumnOfTwoByTwoIsRightInEveryCollective) {
  EXPECT_EQ(
      RunWorld(
          2,
          [](Communicator& world) {
            const int r = world.rank();
            const auto column = [&] {
              const float values[] = {1.0f + r, 20.0f + r, 3.0f - 2 * r, 40.0f + r};
              return Tensor::FromValues<float>(world.context(), {2, 2}, values).Narrow(1, 0, 1);
            };
            const std::vector<float> mine = {1.0f + r, 3.0f - 2 * r};

            const Tensor broadcast = column();
            world.Broadcast({broadcast}, 1).Wait();
            EXPECT_EQ(broadcast.ToVector<float>(), (std::vector<float>{2, 1}));

            const Tensor reduced = column();
            world.AllReduce({{reduced, reduced}}, ReduceOp::kSum).Wait();
            EXPECT_EQ(reduced.ToVector<float>(), (std::vector<float>{3, 4}));

            AllGatherItem gather = {column(), {column(), column()}};
            world.AllGather({gather}).Wait();
            EXPECT_EQ(gather.targets[0].ToVector<float>(), (std::vector<float>{1, 3}));
            EXPECT_EQ(gather.targets[1].ToVector<float>(), (std::vector<float>{2, 1}));

            ReduceScatterItem scatter = {{column(), column()}, column()};
            world.ReduceScatter({scatter}, ReduceOp::kMax).Wait();
            EXPECT_EQ(scatter.target.ToVector<float>(), (std::vector<float>{2, 3}));

            AllToAllItem exchange = {{column(), column()}, {column(), column()}};
            world.AllToAll({exchange}).Wait();
            EXPECT_EQ(exchange.receives[1 - r].ToVector<float>(),
                      (r == 0 ? std::vector<float>{2, 1} : std::vector<float>{1, 3}));
            EXPECT_EQ(exchange.receives[r].ToVector<float>(), mine);
          }),
      absl::OkStatus());
}

// ---- Numbers --------------------------------------------------------------------------------

TEST(Reduction, MinAndMaxPropagateNaNFromAnyRank) {
  OnEveryWorld([](Communicator& world) {
    // Element i is NaN on rank i alone; the last one nowhere.
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      std::vector<float> values(world.size() + 1, 2.0f + world.rank());
      values[world.rank()] = nan;
      const Tensor x = Tensor::FromValues<float>(world.context(), {world.size() + 1}, values);
      world.AllReduce({{x, x}}, op).Wait();
      const std::vector<float> result = x.ToVector<float>();
      for (int m = 0; m < world.size(); ++m)
        EXPECT_TRUE(std::isnan(result[m])) << Name(op) << " " << m;
      EXPECT_EQ(result[world.size()], op == ReduceOp::kMin ? 2.0f : 1.0f + world.size());
    }
  });
}

TEST(Reduction, AccumulatesBFloat16InF32AndRoundsOnce) {
  // 1 + 2^-9 + 2^-9 + 2^-9 = 1.00586; rounding to bf16 after each step would stay at 1.
  EXPECT_EQ(RunWorld(4,
                     [](Communicator& world) {
                       const BFloat16 values[] = {
                           BFloat16(world.rank() == 0 ? 1.0f : std::ldexp(1.0f, -9))};
                       const Tensor x = Tensor::FromValues<BFloat16>(world.context(), {1}, values);
                       world.AllReduce({{x, x}}, ReduceOp::kSum).Wait();
                       EXPECT_EQ(x.Item(), static_cast<float>(BFloat16(1.005859375f)));
                       EXPECT_GT(x.Item(), 1.0);
                     }),
            absl::OkStatus());
}

TEST(Reduction, IntegersWrapAround) {
  EXPECT_EQ(
      RunWorld(3,
               [](Communicator& world) {
                 const int32_t values[] = {std::numeric_limits<int32_t>::max(), 1 << 16};
                 const Tensor x = Tensor::FromValues<int32_t>(world.context(), {2}, values);
                 const Tensor sum = Tensor::Empty(world.context(), {2}, DType::kI32);
                 const Tensor product = Tensor::Empty(world.context(), {2}, DType::kI32);
                 world.AllReduce({{x, sum}}, ReduceOp::kSum).Wait();
                 world.AllReduce({{x, product}}, ReduceOp::kProduct).Wait();
                 EXPECT_EQ(sum.ToVector<int32_t>(), (std::vector<int32_t>{2147483645, 3 << 16}));
                 EXPECT_EQ(product.ToVector<int32_t>(), (std::vector<int32_t>{2147483647, 0}));
               }),
      absl::OkStatus());
}

TEST(Reduction, HasTheSameBitsOnEveryMemberAndInEveryRun) {
  // Thirds do not add up exactly: an order of summation shows in the bits.
  constexpr int64_t kCount = 40009;
  std::vector<float> first;
  for (int run = 0; run < 4; ++run) {
    EXPECT_EQ(
        RunWorld(
            5,
            [&](Communicator& world) {
              std::vector<float> values(kCount);
              for (int64_t i = 0; i < kCount; ++i)
                values[i] = Sample<float>(world.rank(), i) / 3.0f;
              const Tensor x = Tensor::FromValues<float>(world.context(), {kCount}, values);
              std::this_thread::sleep_for(std::chrono::microseconds(Mix(run, world.rank()) % 3000));
              world.AllReduce({{x, x}}, ReduceOp::kSum).Wait();
              AllGatherItem all = {x, {}};
              for (int m = 0; m < 5; ++m) {
                all.targets.push_back(Tensor::Empty(world.context(), {kCount}, DType::kF32));
              }
              world.AllGather({all}).Wait();
              if (world.rank() != 0) return;
              if (run == 0) first = x.ToVector<float>();
              for (int m = 0; m < 5; ++m) {
                EXPECT_EQ(
                    std::memcmp(all.targets[m].data<float>(), first.data(), kCount * sizeof(float)),
                    0)
                    << "run " << run << " rank " << m;
              }
            }),
        absl::OkStatus());
  }
}

}  // namespace
}  // namespace shardmesh
