#include "bootstrap/unique_id.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/read_file.h"

namespace rondo {
namespace {

constexpr std::string_view kIdMagic = "RNDO";
constexpr uint8_t kIdVersion = 1;
constexpr uint8_t kFlagDerived = 1;
constexpr size_t kSumOffset = 124;

// Returns "net:[4026531833]", or the path itself if namespaces cannot be read.
std::string read_link(const char* path) {
  char buffer[256];
  const ssize_t n = ::readlink(path, buffer, sizeof(buffer));
  return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : std::string(path);
}

}  // namespace

uint64_t fnv1a(std::string_view bytes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : bytes) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return h;
}

rondo_unique_id encode_id(const IdContents& contents) {
  Encoder w;
  w.raw(kIdMagic)(kIdVersion, contents.derived ? kFlagDerived : uint8_t{0}, contents.port, contents.secret,
                  contents.host_hash);
  const size_t n = std::min(contents.addresses.size(), IdContents::kMaxAddresses);
  w(static_cast<uint8_t>(n));
  for (size_t i = 0; i < n; ++i) w(static_cast<uint8_t>(contents.addresses[i].v6 ? 6 : 4), contents.addresses[i].bytes);
  rondo_unique_id id = {};
  RONDO_CHECK(w.bytes().size() <= kSumOffset);
  std::memcpy(id.bytes, w.bytes().data(), w.bytes().size());
  const auto sum = static_cast<uint32_t>(fnv1a({id.bytes, kSumOffset}));
  std::memcpy(id.bytes + kSumOffset, &sum, sizeof sum);
  return id;
}

Expected<IdContents> decode_id(const rondo_unique_id& id) {
  const Status broken(StatusCode::kInvalidArgument,
                      "the unique id is damaged or was not made by rondo_get_unique_id: all ranks must get its 128 bytes");
  const std::string_view all(id.bytes, sizeof(id.bytes));
  if (!all.starts_with(kIdMagic)) return broken;
  if (Decoder(all.substr(kSumOffset)).get<uint32_t>() != static_cast<uint32_t>(fnv1a(all.substr(0, kSumOffset))))
    return broken;
  Decoder r(all.substr(kIdMagic.size(), kSumOffset - kIdMagic.size()));
  if (const auto version = r.get<uint8_t>(); version != kIdVersion)
    return invalid_argument("the unique id has version {}, this library reads {}", version, kIdVersion);
  IdContents c;
  c.derived = (r.get<uint8_t>() & kFlagDerived) != 0;
  r(c.port, c.secret, c.host_hash);
  const size_t n = r.get<uint8_t>();
  if (n == 0 || n > IdContents::kMaxAddresses) return broken;
  for (size_t i = 0; i < n; ++i) {
    IpAddress a;
    a.v6 = r.get<uint8_t>() == 6;
    r(a.bytes);
    c.addresses.push_back(a);
  }
  return c;
}

Expected<PeerInfo> describe_self(uint64_t pretend_host) {
  const std::string path = "/proc/sys/kernel/random/boot_id", boot_id = first_line_of(path);
  if (boot_id.empty()) return make_error(StatusCode::kSystem, "read {}: {}", path, errno_text(errno));
  PeerInfo self;
  self.host = boot_id + " " + read_link("/proc/self/ns/net");
  if (pretend_host != 0) self.host += fmt::format(" as {}", pretend_host);
  self.process = ProcessName::self();
  char name[256] = "?";
  ::gethostname(name, sizeof(name) - 1);
  self.host_name = name;
  return self;
}

std::string peer_text(Rank rank, const PeerInfo& info) {
  return fmt::format("rank {} (pid {} on {})", rank, info.process.pid, info.host_name);
}

}  // namespace rondo
