// CostCorrections: the measured ratio of a candidate's time to its forecast.
//
// The forecast (cost_model.h) is a sum of a few constants. The effects it omits, such as caches and the scheduler, are
// similar for one candidate from size to size and from run to run. `rondo calibrate` therefore stores, with the
// constants, the ratio of measured to forecast time for each candidate at twelve sizes, for small numbers of processes.
//
// Pure functions over values; their arguments are equal on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rondo {

/// The data path of a candidate. Algorithms with messages have the first four forms: header lines, short or long
/// messages, messages that use the whole ring. Direct algorithms have the last two: copies by the kernel, or access
/// through mappings.
enum class CostForm : uint8_t { kInline = 0, kShort = 1, kLong = 2, kWhole = 3, kCopied = 0, kMapped = 1 };

/// It is trivially copyable, because all ranks get rank 0's corrections when a communicator is made.
struct CostCorrections {
  /// The worlds. A world is a measured configuration: 2, 4, 8 ranks with a core each; 2 and 4 ranks on each core.
  static constexpr std::string_view kWorldNames[] = {"spread_2", "spread_4", "spread_8", "crowded_2", "crowded_4"};
  static constexpr size_t kWorlds = 5, kRows = 64, kForms = 4, kSizes = 12;
  static constexpr double kFirstBytes = 8, kRatio = 4;  // sizes: 8 B, 32 B, ... 32 MiB
  static constexpr double kMost = 128;                  // times longer or shorter

  uint8_t known[kWorlds][kRows] = {};  // for each world and row: a bit for each measured form
  /// log2 of measured / forecast in sixteenths, by world, row of the registry, form and size.
  int8_t sixteenths[kWorlds][kRows][kForms][kSizes] = {};

  /// Returns the world of `nranks` ranks.
  static size_t world_of(int nranks, int ranks_per_core);
  /// Returns the nearest world with corrections. It is oversubscribed if `world` is, and not otherwise. Returns kWorlds
  /// if there is none.
  size_t nearest_measured(size_t world) const;
  bool knows(size_t world, size_t row, CostForm form) const {
    return world < kWorlds && row < kRows && (known[world][row] >> static_cast<int>(form) & 1) != 0;
  }
  void note_known(size_t world, size_t row, CostForm form) {
    known[world][row] = static_cast<uint8_t>(known[world][row] | 1 << static_cast<int>(form));
  }
  static int8_t encode(double ratio);
  static double decode(double sixteenths);
  /// Returns the factor for a forecast, interpolated linearly in logarithms between two sizes. Never compare a
  /// corrected forecast with an uncorrected one. If a candidate has no correction, use the plain forecasts of all
  /// candidates. `world`: from nearest_measured.
  double factor(size_t world, size_t row, CostForm form, double bytes) const;
  friend bool operator==(const CostCorrections&, const CostCorrections&) = default;
};

}  // namespace rondo
