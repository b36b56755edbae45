// Obtains one unique id for the ranks of a launched job, and joins. Declared in launch/launch.h.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/read_file.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/unique_id.h"
#include "config/setting_table.h"
#include "launch/file_store.h"
#include "launch/id_handout.h"
#include "launch/launch.h"
#include "launch/torch_store.h"

namespace rondo {
namespace {

// Returns the nearest ancestor that is Hydra's proxy (a shell may be in between), or the parent.
int find_launcher_pid() {
  constexpr int kMaxGenerations = 16;
  int pid = ::getppid();
  for (int i = 0; i < kMaxGenerations && pid > 1; ++i) {
    const std::string stat = read_file(fmt::format("/proc/{}/stat", pid)).value_or("");  // "pid (name) state ppid ..."
    const size_t close = stat.rfind(')');
    if (close == std::string::npos || close + 4 >= stat.size()) break;
    if (stat.find("(hydra_pmi_proxy") != std::string::npos) return pid;
    pid = std::atoi(stat.c_str() + close + 4);
  }
  return ::getppid();
}

Expected<rondo_unique_id> id_through_torch_store(const LaunchInfo& info, const Deadline& deadline) {
  RONDO_TRY_ASSIGN(TorchStore store, TorchStore::connect(info.master_addr, info.master_port, deadline));
  // Every rank counts its communicators in the store, so that all ranks' n-th communicators meet.
  const std::string prefix = "rondo/" + info.job;
  RONDO_TRY_ASSIGN(const int64_t nth, store.add(fmt::format("{}/count/{}", prefix, info.rank), 1, deadline));
  const std::string key = fmt::format("{}/id/{}", prefix, nth);
  rondo_unique_id id = {};
  if (info.rank == 0) {
    RONDO_TRY_ASSIGN(id, make_unique_id());
    RONDO_TRY(store.set(key, {id.bytes, sizeof(id.bytes)}, deadline));
    return id;
  }
  RONDO_TRY_ASSIGN(const std::string value, store.get(key, deadline));
  if (value.size() != sizeof(id.bytes))
    return make_error(StatusCode::kMismatch, "torch's store holds {} bytes under '{}', a unique id has {}",
                      value.size(), key, sizeof(id.bytes));
  std::memcpy(id.bytes, value.data(), sizeof(id.bytes));
  return id;
}

Expected<rondo_unique_id> id_through_local_socket(const LaunchInfo& info, const Deadline& deadline) {
  // Hashed, because job names may be long and other users must not see them.
  const std::string name = fmt::format("rondo-job-{}-{:016x}", ::getuid(), fnv1a(info.job));
  if (info.rank != 0) return fetch_id(name, info.rank, deadline);
  RONDO_TRY_ASSIGN(const rondo_unique_id id, make_unique_id());
  RONDO_TRY(hand_out_id(name, id, info.nranks, deadline));
  return id;
}

struct MeetingPlace {
  std::string host;
  uint16_t port;
  std::string secret;       // any text
  std::string_view advice;  // remedy if the port is taken
};

// Every rank computes the same id. Rank 0 keeps its rendezvous open for open_s.
Expected<rondo_unique_id> derived_id(const MeetingPlace& place, bool open, double open_s) {
  IdContents id;
  id.derived = true;
  id.port = place.port;
  id.secret = derive_secret({'r', 'o', 'n', 'd', 'o', ' ', 's', 'e', 'c', 'r', 'e', 't'}, place.secret);
  RONDO_TRY_ASSIGN(id.addresses, resolve(place.host));
  if (open) {
    RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
    RONDO_TRY_ASSIGN(std::vector<IpAddress> addresses, usable_addresses(settings.socket_ifname));
    for (const IpAddress& a : id.addresses)  // MASTER_ADDR may be "localhost"
      if (std::find(addresses.begin(), addresses.end(), a) == addresses.end()) addresses.push_back(a);
    auto listeners = listen_tcp(addresses, id.port);
    if (!listeners.ok())
      return make_error(StatusCode::kSystem, "rank 0 cannot open the rendezvous: {}; {}", listeners.status().message(),
                        place.advice);
    RONDO_TRY(start_rendezvous(Fd(), std::move(*listeners), id.secret, open_s));
  }
  if (id.addresses.size() > IdContents::kMaxAddresses) id.addresses.resize(IdContents::kMaxAddresses);
  return encode_id(id);
}

Expected<rondo_unique_id> find_id(const LaunchInfo& info, const Deadline& deadline) {
  switch (info.meeting) {
    case LaunchInfo::Meeting::kUniqueId: return info.unique_id;
    case LaunchInfo::Meeting::kAlone: return make_unique_id();
    case LaunchInfo::Meeting::kTorchStore: return id_through_torch_store(info, deadline);
    case LaunchInfo::Meeting::kLocalSocket: return id_through_local_socket(info, deadline);
    case LaunchInfo::Meeting::kFileStore: break;  // handled by join_through_file
    case LaunchInfo::Meeting::kDerivedId:
      return derived_id({info.master_addr, info.master_port, info.secret, "set RONDO_PORT to a free port on all ranks"},
                        info.rank == 0, 2 * deadline.seconds());
  }
  return Status(StatusCode::kInternal, "unknown kind of meeting");
}

// Rank 0 removes the file before any rank continues, so that the next call cannot find this call's file.
Expected<std::unique_ptr<Bootstrap>> join_through_file(const LaunchInfo& info, const BootstrapOptions& options) {
  const Deadline deadline(options.deadline_s, options.abort);
  RONDO_TRY_ASSIGN(FileStore store, FileStore::open(info.directory, info.job));
  rondo_unique_id id = {};
  if (info.rank == 0) {
    RONDO_TRY_ASSIGN(id, make_unique_id());
    RONDO_TRY(store.publish(id, deadline));
  } else {
    RONDO_TRY_ASSIGN(id, store.fetch(info.rank, deadline));
  }
  RONDO_TRY_ASSIGN(std::unique_ptr<Bootstrap> joined, Bootstrap::join(info.nranks, id, info.rank, options));
  store.withdraw();
  RONDO_TRY(joined->barrier());
  return joined;
}

// Parses "host:port" or "[fd00::1]:port". Returns nullopt for any other text.
std::optional<MeetingPlace> place_from(std::string_view host_port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = host_port.substr(0, colon), digits = host_port.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0 || host.empty()) return std::nullopt;
  return MeetingPlace{std::string(host), port, "", "name a free port on all ranks"};
}

}  // namespace

Expected<rondo_unique_id> unique_id_at(const std::string& host_port, const std::string& secret, bool open) {
  auto place = place_from(host_port);
  if (!place)
    return invalid_argument("'{}' is not a meeting place: expected host:port, or [IPv6 address]:port", host_port);
  place->secret = "place " + secret;
  RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
  return derived_id(*place, open, 2 * settings.init_timeout_s);
}

Expected<LaunchInfo> launch_from_environment() {
  RONDO_TRY_ASSIGN(const SettingValues values, SettingValues::load());
  auto lookup = [&values](const char* name) -> const char* {
    for (const SettingRow& row : setting_rows())
      if (const SettingValue* v = values.find(row.key); v != nullptr && variable_of(row.key) == name)
        return v->text.c_str();  // may come from a configuration file
    return std::getenv(name);
  };
  return launch_from_lookup(lookup, find_launcher_pid());
}

Expected<std::unique_ptr<Bootstrap>> join_launch(const LaunchInfo& info, const BootstrapOptions& options) {
  if (info.meeting == LaunchInfo::Meeting::kFileStore) {
    auto joined = join_through_file(info, options);
    if (joined.ok()) return joined;
    return make_error(joined.status().code(), "{} ({})", joined.status().message(), info.how);
  }
  const Deadline deadline(options.deadline_s, options.abort);
  auto id = find_id(info, deadline);
  if (!id.ok()) return make_error(id.status().code(), "{} ({})", id.status().message(), info.how);
  return Bootstrap::join(info.nranks, *id, info.rank, options);
}

Expected<std::unique_ptr<Bootstrap>> join_from_environment(const BootstrapOptions& options) {
  RONDO_TRY_ASSIGN(const LaunchInfo info, launch_from_environment());
  return join_launch(info, options);
}

}  // namespace rondo
