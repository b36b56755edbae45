// CostCorrections: how much longer or shorter than forecast each candidate took where it was measured.
//
// The forecast (cost_model.h) is a sum of a few constants; what it leaves out, as caches and a scheduler do, is alike
// for one candidate from size to size and from run to run. `rondo calibrate` therefore keeps, beside the constants, the
// ratio of measured to forecast time for each candidate at twelve sizes, on the small worlds of processes that it
// starts.
//
// Pure functions over values; what they are given is equal on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rondo {

/// How a candidate moves its data. Of an algorithm from buffer to buffer: by the kernel's copies, or through mappings.
enum class CostForm : uint8_t { kInline = 0, kShort = 1, kLong = 2, kCopied = 0, kMapped = 1 };

/// Trivially copyable: rank 0's goes to all ranks when a communicator is made.
struct CostCorrections {
  /// Where it was measured: 2, 4, 8 ranks with a core each; 2 and 4 ranks on each core.
  static constexpr std::string_view kWorldNames[] = {"spread_2", "spread_4", "spread_8", "crowded_2", "crowded_4"};
  static constexpr size_t kWorlds = 5, kRows = 64, kForms = 3, kSizes = 12;
  static constexpr double kFirstBytes = 8, kRatio = 4;  // sizes: 8 B, 32 B, ... 32 MiB
  static constexpr double kMost = 128;                  // times longer or shorter

  uint8_t known[kWorlds][kRows] = {};  // of each world and row: a bit for each form that was measured
  /// log2 of measured / forecast in sixteenths, by world, row of the registry, form and size.
  int8_t sixteenths[kWorlds][kRows][kForms][kSizes] = {};

  /// The world of so many ranks.
  static size_t world_of(int nranks, int ranks_per_core);
  /// The nearest one to it that was measured, with a core each or shared as there; kWorlds: none.
  size_t nearest_measured(size_t world) const;
  bool knows(size_t world, size_t row, CostForm form) const {
    return world < kWorlds && row < kRows && (known[world][row] >> static_cast<int>(form) & 1) != 0;
  }
  void note_known(size_t world, size_t row, CostForm form) {
    known[world][row] = static_cast<uint8_t>(known[world][row] | 1 << static_cast<int>(form));
  }
  static int8_t encode(double ratio);
  static double decode(double sixteenths);
  /// By what a forecast is multiplied; between two sizes on the straight line in logarithms. What is known and what is
  /// not must not be compared: then all plain forecasts. `world`: as nearest_measured says.
  double factor(size_t world, size_t row, CostForm form, double bytes) const;
  friend bool operator==(const CostCorrections&, const CostCorrections&) = default;
};

}  // namespace rondo
