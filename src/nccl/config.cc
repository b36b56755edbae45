#include "nccl/config.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "config/setting_table.h"

namespace rondo::nccl {
namespace {

constexpr size_t kPrefixBytes = offsetof(ncclConfig_t, blocking);  // size, magic, version
constexpr int kAny = INT_MAX;

}  // namespace

#define RONDO_FIELD(name, since, least, most) \
  { #name, offsetof(ncclConfig_t, name), sizeof(ncclConfig_t::name), since, least, most }
const ConfigField kConfigFields[] = {
    RONDO_FIELD(blocking, 21400, 0, 1),
    RONDO_FIELD(cgaClusterSize, 21700, 0, 8),
    RONDO_FIELD(minCTAs, 21700, 1, kAny),
    RONDO_FIELD(maxCTAs, 21700, 1, kAny),
    RONDO_FIELD(netName, 21700, 0, 0),
    RONDO_FIELD(splitShare, 21800, 0, 1),
    RONDO_FIELD(trafficClass, 22600, 0, kAny),
    RONDO_FIELD(commName, 22700, 0, 0),
    RONDO_FIELD(collnetEnable, 22700, 0, 1),
    RONDO_FIELD(CTAPolicy, 22700, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO),
    RONDO_FIELD(shrinkShare, 22700, 0, 1),
    RONDO_FIELD(nvlsCTAs, 22700, 1, kAny),
    RONDO_FIELD(nChannelsPerNetPeer, 22800, 1, kAny),
    RONDO_FIELD(nvlinkCentricSched, 22800, 0, 1),
    RONDO_FIELD(graphUsageMode, 22900, 0, 2),
    RONDO_FIELD(numRmaCtx, 22900, 0, kAny),
    RONDO_FIELD(maxP2pPeers, 23003, 1, kAny),
    RONDO_FIELD(graphStreamOrdering, 23007, 0, 1),
    RONDO_FIELD(launchOrderImplicit, 23100, 0, kAny),
    RONDO_FIELD(numRmaSig, 23100, 0, kAny),
    RONDO_FIELD(rmaEagerInit, 23100, 0, kAny),
    RONDO_FIELD(hostCftMode, 23100, 0, kAny),
    RONDO_FIELD(nvlsHostMode, 23100, 0, kAny),
    {nullptr, 0, 0, 0, 0, 0},
};
#undef RONDO_FIELD

namespace {

// The fields of the caller's version; all others are unset. Errors: kInvalidArgument (magic, size).
Expected<ncclConfig_t> normalise(const ncclConfig_t* config) {
  if (config != nullptr && config->magic != NCCL_API_MAGIC)
    return invalid_argument("config.magic is {:#x}, not {:#x}: begin with NCCL_CONFIG_INITIALIZER", config->magic,
                            NCCL_API_MAGIC);
  if (config != nullptr && config->size < kPrefixBytes)
    return invalid_argument("config.size is {}: less than {} bytes, the minimum of all versions", config->size,
                            kPrefixBytes);
  ncclConfig_t own = {};
  if (config != nullptr) own.version = config->version;
  for (const ConfigField* f = kConfigFields; f->name != nullptr; ++f) {
    auto* at = reinterpret_cast<std::byte*>(&own) + f->offset;
    const int none = NCCL_CONFIG_UNDEF_INT;
    if (config != nullptr && f->since <= config->version && f->offset + f->bytes <= config->size)
      std::memcpy(at, reinterpret_cast<const std::byte*>(config) + f->offset, f->bytes);
    else if (f->bytes == sizeof none) std::memcpy(at, &none, sizeof none);
  }
  return own;
}

}  // namespace

Expected<CommConfig> read_config(const ncclConfig_t* config) {
  RONDO_TRY_ASSIGN(const ncclConfig_t c, normalise(config));
  for (const ConfigField* f = kConfigFields; f->name != nullptr; ++f) {
    if (f->bytes != sizeof(int)) continue;  // a string
    int value = 0;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(&c) + f->offset, sizeof value);
    if (value == NCCL_CONFIG_UNDEF_INT || (value >= f->least && value <= f->most)) continue;
    const std::string expected =
        f->most == kAny ? fmt::format("{} or more", f->least) : fmt::format("{} to {}", f->least, f->most);
    return invalid_argument("config.{} is {}: expected {}", f->name, value, expected);
  }
  CommConfig own;
  own.version = c.version;
  if (c.blocking != NCCL_CONFIG_UNDEF_INT) own.blocking = c.blocking != 0;
  if (c.minCTAs != NCCL_CONFIG_UNDEF_INT) own.min_ctas = c.minCTAs;
  own.most_given = c.maxCTAs != NCCL_CONFIG_UNDEF_INT;
  if (own.most_given) own.max_ctas = c.maxCTAs;
  if (c.maxCTAs == NCCL_CONFIG_UNDEF_INT) own.max_ctas = std::max(own.max_ctas, own.min_ctas);
  own.no_blocks = c.CTAPolicy != NCCL_CONFIG_UNDEF_INT && (c.CTAPolicy & NCCL_CTA_POLICY_ZERO) != 0;
  if (own.min_ctas > own.max_ctas)
    return invalid_argument("config.minCTAs is {} and maxCTAs {}", own.min_ctas, own.max_ctas);
  if (c.commName != nullptr) own.name = c.commName;
  return own;
}

Expected<std::string> settings_of(const CommConfig& config, Memory memory) {
  RONDO_TRY_ASSIGN(const SettingValues stronger, SettingValues::load());
  std::string text;
  if (memory == Memory::kCuda && stronger.find("timeout_s") == nullptr) text = "timeout_s = 1000000000\n";  // 31 years
  if (config.version == 0) return text;  // there was no config
  if (stronger.find("device_engine") == nullptr)
    text += fmt::format("device_engine = {}\n", config.no_blocks ? "stream" : "auto");
  const auto limited = [](int ctas) { return static_cast<uint32_t>(std::min(ctas, kMostBlocks)); };
  setting::Blocks blocks = stronger.fields().device_blocks;
  if (blocks.least == 0) blocks.least = limited(config.min_ctas);
  if (blocks.most == 0 && config.most_given) blocks.most = limited(config.max_ctas);
  if (blocks.most != 0) blocks.least = std::min(blocks.least, blocks.most);
  return text + fmt::format("device_blocks = {}\n", blocks.text());
}

}  // namespace rondo::nccl
