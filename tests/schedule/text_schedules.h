// Shared by tests of the checker: schedules from a few lines, and the expected errors.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "algorithms/registry.h"
#include "schedule/checker.h"

namespace rondo {

/// Records `text(p, rank)` for all ranks.
template <class F>
Schedule schedule_of(Collective collective, int nranks, Rank root, F text) {
  Schedule s;
  s.collective = collective;
  s.nranks = nranks;
  s.root = root;
  for (Rank r = 0; r < nranks; ++r) {
    Recorder p(r, nranks);
    text(p, r);
    s.ranks.push_back(p.take());
  }
  return s;
}
template <class F>
Schedule schedule_of(Collective collective, int nranks, F text) {
  return schedule_of(collective, nranks, 0, text);
}

inline Schedule of(const char* name, Collective collective, int nranks) {
  return record_all(*find_algorithm(collective, name), nranks);
}

inline void expect_refused(const Schedule& s, const std::string& why, const CheckOptions& options = {},
                           const CheckClaims& claims = {}) {
  const CheckReport report = check_schedule(s, options, claims);
  EXPECT_FALSE(report.ok);
  EXPECT_NE(report.reason.find(why), std::string::npos) << "wanted: " << why << "\ngot: " << report.reason;
}

/// Only values and deadlocks: in one loop, in and out in different memory.
inline constexpr CheckOptions kValues{1, 1, 64, 1, 0, false};

/// Two ranks swap their buffers and add; `order` is the position of the own operand.
template <class F>
Schedule swap_and_add(F order, Sum sum = Sum::kFinal) {
  return schedule_of(Collective::kAllReduce, 2, [&](Recorder& p, Rank r) {
    p.chunks(1, 1);
    p.lane(0);
    p.send(in(0), {{1 - r, 0}});
    p.recv_reduce_copy({{1 - r, 0}}, in(0), out(0), order(r), sum);
  });
}

}  // namespace rondo
