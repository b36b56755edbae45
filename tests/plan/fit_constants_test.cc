// The fit of the planner's constants finds the constants behind the timings, in spite of outliers. It does not change
// constants without measurements.
// labels: unit
#include "plan/fit_constants.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "algorithms/registry.h"
#include "plan/schedule_profile.h"

namespace rondo {
namespace {

std::vector<Observation> observations_of(const CostVector& truth, size_t terms, int num) {
  std::mt19937 random(7);
  std::vector<Observation> all;
  for (int i = 0; i < num; ++i) {
    Observation o;
    for (size_t t = 0; t < terms; ++t) {
      o.counts[t] = static_cast<double>(random() % 1000) / 100;
      o.measured_ns += o.counts[t] * truth[t];
    }
    if (o.measured_ns > 0) all.push_back(o);
  }
  return all;
}

TEST(Fit, FindsTheConstantsThatMadeTheTimings) {
  CostVector prior, truth;
  prior.fill(100);
  truth.fill(100);
  for (size_t t = 0; t < 6; ++t) truth[t] = 30 + 40 * static_cast<double>(t);
  const std::vector<Observation> all = observations_of(truth, 6, 200);
  const CostVector found = fit_constants(all, prior);
  for (size_t t = 0; t < 6; ++t) EXPECT_NEAR(found[t] / truth[t], 1, 0.1) << t;  // the prior pulls a little
  EXPECT_LT(median_error(all, found), 0.01);
  EXPECT_GT(median_error(all, prior), 0.05);
}

TEST(Fit, OutliersDoNotLead) {
  CostVector prior, truth;
  prior.fill(100);
  truth.fill(150);
  std::vector<Observation> all = observations_of(truth, 4, 200);
  for (size_t i = 0; i < all.size(); i += 10) all[i].measured_ns *= 20;  // other work used the core
  const CostVector found = fit_constants(all, prior);
  for (size_t t = 0; t < 4; ++t) EXPECT_NEAR(found[t] / truth[t], 1, 0.1) << t;
}

TEST(Fit, WhatWasNotMeasuredStays) {
  CostVector prior, truth;
  prior.fill(100);
  truth.fill(200);
  const CostVector found = fit_constants(observations_of(truth, 3, 100), prior);
  for (size_t t = 3; t < kNumCostTerms; ++t) EXPECT_DOUBLE_EQ(found[t], 100) << t;
  EXPECT_EQ(fit_constants({}, prior), prior);
}

// The calls of `rondo calibrate` between two processes, on a processor that reads dirty lines of another core slowly.
TEST(Fit, FindsWhatAShortLapCosts) {
  constexpr auto kDirty = static_cast<size_t>(CostTerm::kDirtyRingByte),
                 kLong = static_cast<size_t>(CostTerm::kLongRingByte);
  const CostModel built_in = built_in_costs();
  CostModel truth = built_in;
  truth.spread[kDirty] = 0.06;
  std::vector<Observation> all;
  for (const Algorithm& a : all_algorithms()) {
    if (a.direct || a.for_hosts) continue;
    const ScheduleProfile p = profile_schedule(a, 2, 0, 1);
    for (double bytes = 512; bytes <= 32 << 20; bytes *= 4)
      for (const bool whole : {false, true}) {
        CostCase c{&p, Protocol::kSimple, false, false, 65536, bytes, p.longest_chunk * bytes, 1};
        c.whole_ring = whole;
        c.lap_bytes = whole ? 2 << 20 : kLapBytes;
        const CostVector counts = cost_counts(c, built_in);
        all.push_back({counts, forecast_ns(counts, truth, 1)});
      }
  }
  const CostVector found = fit_constants(all, built_in.spread);
  // All bytes of rings have one of the two, so timings show only their difference.
  EXPECT_NEAR((found[kDirty] - found[kLong]) / (truth.spread[kDirty] - truth.spread[kLong]), 1, 0.2);
  EXPECT_LT(median_error(all, found), 0.02);
}

// A processor whose second-level cache is small beside a shared third level: far begins at 1 MiB.
TEST(Fit, FindsWhereFarBegins) {
  CostModel start = built_in_costs(), truth = start;
  start.near_bytes = 256 << 10;
  truth.near_bytes = 1 << 20;
  truth.spread[static_cast<size_t>(CostTerm::kFarRingByte)] *= 3;
  truth.spread[static_cast<size_t>(CostTerm::kUserByte)] *= 1.5;
  const ScheduleProfile p = profile_schedule(*find_algorithm(Collective::kAllReduce, "ring"), 2, 0, 1);
  std::vector<TimedCall> calls;
  for (const double bytes : {4e3, 16e3, 64e3, 256e3, 1e6, 2e6, 4e6}) {
    CostCase c{&p, Protocol::kSimple, false, false, 16384, bytes, p.longest_chunk * bytes, 1};
    c.lap_bytes = 512 * 1024;
    calls.push_back({c, forecast_ns(cost_counts(c, truth), truth, 1)});
  }
  const CostModel found = fit_model(calls, start, 2 << 20, 1e-4);
  EXPECT_EQ(found.near_bytes, truth.near_bytes);
  EXPECT_LT(median_error(calls, found), 0.02);
  EXPECT_EQ(found.oversubscribed, start.oversubscribed);
  EXPECT_EQ(fit_model(calls, start, 0, 1e-4).near_bytes, start.near_bytes);  // no other value is permitted
}

TEST(Fit, ConstantsThatAreKnownStay) {
  CostVector prior, truth;
  prior.fill(100);
  truth.fill(100);
  for (size_t t = 4; t < 7; ++t) truth[t] = 300;
  const std::vector<Observation> all = observations_of(truth, 7, 200);
  const CostVector found = fit_constants(all, prior, CostTerm{4});
  for (size_t t = 0; t < 4; ++t) EXPECT_DOUBLE_EQ(found[t], 100) << t;
  for (size_t t = 4; t < 7; ++t) EXPECT_NEAR(found[t] / truth[t], 1, 0.1) << t;
}

TEST(Fit, NoConstantFallsToZero) {
  CostVector prior, truth{};
  prior.fill(100);
  truth[0] = 100;  // the others cost nothing
  for (double c : fit_constants(observations_of(truth, 4, 100), prior)) EXPECT_GE(c, 2);
}

}  // namespace
}  // namespace rondo
