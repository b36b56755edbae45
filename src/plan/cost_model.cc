#include "plan/cost_model.h"

#include <algorithm>
#include <cmath>

namespace rondo {
namespace {

/// 0 up to near_bytes, 1 from four times that on.
double far_part(double bytes, double near_bytes) {
  return bytes <= near_bytes ? 0 : std::min(1.0, std::log2(bytes / near_bytes) / 2);
}

/// The first bytes of a message cost more than the others. With this size, forecasts had smaller errors than with 8 KiB
/// on both measured processors.
constexpr double kSlowBytes = 4096;

class Counter {
 public:
  Counter(const CostCase& c, const CostModel& model)
      : c_(c),
        model_(model),
        work_(work_of_core(*c.profile, c.ranks_per_core)),
        size_(c.whole_bytes),
        user_size_(c.user_bytes > 0 ? c.user_bytes : c.whole_bytes),
        far_(far_part(std::max(size_, user_size_) * c.ranks_per_core, static_cast<double>(model.near_bytes))) {}

  CostVector count() {
    at(CostTerm::kCall) = c_.ranks_per_core;
    at(CostTerm::kHandover) = c_.profile->rounds;
    at(CostTerm::kStep) = work_.credits;
    at(CostTerm::kEnd) = work_.credit_lines;
    if (c_.profile->crossings > 0) between_hosts();
    if (c_.direct) direct();
    else if (c_.protocol == Protocol::kInline) in_lines();
    else in_rings();
    return counts_;
  }

 private:
  double& at(CostTerm t) { return counts_[static_cast<size_t>(t)]; }
  void bytes(CostTerm near, CostTerm far, double n) {
    at(near) += n * (1 - far_);
    at(far) += n * far_;
  }

  void between_hosts() {
    const double loops =
        c_.protocol == Protocol::kInline ? 1 : std::max(1.0, std::ceil(c_.chunk_bytes / c_.message_bytes));
    at(CostTerm::kHostHop) = c_.profile->crossings;
    at(CostTerm::kHostMessage) = work_.host_messages * loops;
    at(CostTerm::kHostByte) = c_.profile->host_share * size_;
  }
  void in_lines() {
    const double lines = std::max(1.0, std::ceil(c_.chunk_bytes / kLinePayloadBytes));
    at(CostTerm::kStep) += work_.steps;
    at(CostTerm::kLine) = work_.adding_steps * lines;
    at(CostTerm::kEnd) += work_.ends * lines;
  }
  void in_rings() {
    const double loops = std::max(1.0, std::ceil(c_.chunk_bytes / c_.message_bytes));
    at(CostTerm::kMessage) = work_.steps * loops;
    at(CostTerm::kEnd) += work_.ends * loops;
    bytes(CostTerm::kRingByte, CostTerm::kFarRingByte, work_.ring_share * size_);
    const bool one_host = c_.profile->crossings == 0;
    const double in_use = work_.connections * std::min(c_.lap_bytes, c_.chunk_bytes);
    const double evicted = c_.ranks_per_core == 1 && one_host
                               ? (c_.whole_ring ? 1 : 0)
                               : far_part(in_use, static_cast<double>(model_.near_bytes));
    at(CostTerm::kDirtyRingByte) = work_.ring_share * size_ * (1 - evicted);
    at(CostTerm::kLongRingByte) = work_.ring_share * size_ * evicted;
    bytes(CostTerm::kUserByte, CostTerm::kFarUserByte, work_.user_share * user_size_);
    at(CostTerm::kDataHandover) = c_.profile->rounds;
    if (c_.ranks_per_core > 1) return;  // other work fills this time
    const double message = std::min(c_.chunk_bytes, c_.message_bytes);
    at(CostTerm::kDataHandover) *= std::min(1.0, message / kSlowBytes);
    at(CostTerm::kLoop) = c_.profile->rounds * (loops - 1);
    if (one_host ? c_.profile->equal_work : c_.both_send) return;         // all are busy from the start
    const double fill = std::max(0.0, c_.profile->rounds - 1) * message;  // while not all links are in use yet
    at(CostTerm::kRingByte) += fill;
    at(CostTerm::kDirtyRingByte) += fill;
  }
  void direct() {
    bytes(CostTerm::kUserByte, CostTerm::kFarUserByte, work_.user_share * user_size_);
    const double peer = work_.peer_share * user_size_, fresh = work_.fresh_share * user_size_;
    // Rounding of near data costs about as much as another pass over them. For far data, memory time hides the rounding
    // of two operands, but not of the many operands of ranks that share cores (bench/results/mixed_types.json).
    const double seen = c_.ranks_per_core > 1 ? 1 : 1 - far_;
    if (c_.rounds) at(CostTerm::kUserByte) += (peer - fresh + work_.user_share * user_size_) * seen;
    if (!c_.by_copy) {
      at(CostTerm::kMessage) = work_.pulls;
      return bytes(CostTerm::kPeerByte, CostTerm::kFarPeerByte, peer);
    }
    constexpr double kBytesPerCall = 256 * 1024;
    at(CostTerm::kPullCall) = work_.pulls + peer / kBytesPerCall;
    if (!c_.rounds) {  // added data is read again from a block that its peers share; rounding, above, includes that
      at(CostTerm::kBlockByte) = work_.added_share * user_size_ * (1 - far_);
      at(CostTerm::kUserByte) += work_.added_share * user_size_ * far_;
      at(CostTerm::kPullCall) += (work_.block_share - work_.added_share) * user_size_ / kBytesPerCall;
    }
    if (user_size_ > static_cast<double>(model_.huge_bytes)) {
      at(CostTerm::kHugePullByte) = peer;
      return;
    }
    // In calls in place one after another, the last call has just written the peers' input.
    const double hot = c_.profile->overwrites_input ? peer : fresh;
    bytes(CostTerm::kPullByte, CostTerm::kFarPullByte, peer - hot);
    bytes(CostTerm::kFreshPullByte, CostTerm::kFarFreshPullByte, hot);
  }

  const CostCase& c_;
  const CostModel& model_;
  const RankWork work_;
  const double size_, user_size_, far_;
  CostVector counts_{};
};

}  // namespace

CostModel built_in_costs() {
  CostModel m{{}, {}, 1 << 20, 48 << 20};
  for (size_t t = 0; t < kNumCostTerms; ++t) {
    m.spread[t] = kCostTerms[t].spread;
    m.oversubscribed[t] = kCostTerms[t].oversubscribed;
  }
  return m;
}

CostVector cost_counts(const CostCase& c, const CostModel& model) { return Counter(c, model).count(); }

double forecast_ns(const CostVector& counts, const CostModel& model, int ranks_per_core) {
  const CostVector& k = ranks_per_core > 1 ? model.oversubscribed : model.spread;
  double sum = 0;
  for (size_t t = 0; t < kNumCostTerms; ++t) sum += counts[t] * k[t];
  return sum;
}

}  // namespace rondo
