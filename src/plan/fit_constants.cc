#include "plan/fit_constants.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace rondo {
namespace {

double forecast(const CostVector& counts, const CostVector& constants) {
  double sum = 0;
  for (size_t t = 0; t < kNumCostTerms; ++t) sum += counts[t] * constants[t];
  return sum;
}

std::vector<double> relative_errors(std::span<const Observation> observations, const CostVector& constants) {
  std::vector<double> errors;
  for (const Observation& o : observations)
    errors.push_back(std::abs(forecast(o.counts, constants) / o.measured_ns - 1));
  return errors;
}

std::vector<Observation> counted(std::span<const TimedCall> calls, const CostModel& model) {
  std::vector<Observation> observations;
  for (const TimedCall& c : calls) observations.push_back({cost_counts(c.cost, model), c.measured_ns});
  return observations;
}

/// The normal equations of one weighted fit, in multiples of the prior.
class Equations {
 public:
  Equations(std::span<const Observation> observations, const CostVector& prior, const CostVector& constants,
            double pull_each) {
    for (const Observation& o : observations) {
      const double error = std::abs(forecast(o.counts, constants) / o.measured_ns - 1);
      const double weight = error > kBorder ? kBorder / error : 1;
      CostVector row{};
      for (size_t t = 0; t < kNumCostTerms; ++t) row[t] = o.counts[t] * prior[t] / o.measured_ns;
      for (size_t a = 0; a < kNumCostTerms; ++a) {
        right_[a] += weight * row[a];
        for (size_t b = 0; b < kNumCostTerms; ++b) left_[a][b] += weight * row[a] * row[b];
      }
    }
    const double pull = pull_each * static_cast<double>(observations.size()) + 1e-9;
    for (size_t a = 0; a < kNumCostTerms; ++a) {
      left_[a][a] += pull;
      right_[a] += pull;
    }
  }

  /// Coordinate descent. It converges because the matrix is positive definite.
  void solve(CostVector& multiples, size_t first) const {
    for (int sweep = 0; sweep < 5000; ++sweep) {
      double most_change = 0;
      for (size_t a = first; a < kNumCostTerms; ++a) {
        double rest = right_[a];
        for (size_t b = 0; b < kNumCostTerms; ++b)
          if (b != a) rest -= left_[a][b] * multiples[b];
        const double next = std::max(kLeast, rest / left_[a][a]);
        most_change = std::max(most_change, std::abs(next - multiples[a]));
        multiples[a] = next;
      }
      if (most_change < 1e-7) return;
    }
  }

 private:
  static constexpr double kBorder = 0.15, kLeast = 0.02;
  std::array<CostVector, kNumCostTerms> left_{};
  CostVector right_{};
};

}  // namespace

CostVector fit_constants(std::span<const Observation> observations, const CostVector& prior, CostTerm first,
                         double pull) {
  CostVector multiples, constants = prior;
  multiples.fill(1);
  for (int round = 0; round < 30; ++round) {
    Equations(observations, prior, constants, pull).solve(multiples, static_cast<size_t>(first));
    for (size_t t = 0; t < kNumCostTerms; ++t) constants[t] = multiples[t] * prior[t];
  }
  return constants;
}

double median_error(std::span<const Observation> observations, const CostVector& constants) {
  if (observations.empty()) return 0;
  std::vector<double> errors = relative_errors(observations, constants);
  const auto middle = errors.begin() + static_cast<ptrdiff_t>(errors.size() / 2);
  std::nth_element(errors.begin(), middle, errors.end());
  return *middle;
}

double median_error(std::span<const TimedCall> calls, const CostModel& model) {
  return median_error(counted(calls, model), model.spread);
}

CostModel fit_model(std::span<const TimedCall> calls, const CostModel& prior, uint64_t most_near_bytes, double pull) {
  CostModel best = prior;
  double least = std::numeric_limits<double>::infinity();
  for (uint64_t near = prior.near_bytes; near <= std::max(prior.near_bytes, most_near_bytes); near *= 2) {
    CostModel tried = prior;
    tried.near_bytes = near;
    const std::vector<Observation> observations = counted(calls, tried);
    tried.spread = fit_constants(observations, prior.spread, CostTerm{0}, pull);
    const std::vector<double> errors = relative_errors(observations, tried.spread);
    const double sum = std::accumulate(errors.begin(), errors.end(), 0.0);
    if (sum >= least) continue;
    least = sum;
    best = tried;
  }
  return best;
}

}  // namespace rondo
