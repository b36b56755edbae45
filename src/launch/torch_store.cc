#include "launch/torch_store.h"

#include <fmt/format.h>

#include "base/codec.h"
#include "base/error.h"

namespace rondo {
namespace {

enum Query : uint8_t { kValidate = 0, kSet = 1, kGet = 3, kAdd = 4, kCheck = 5 };
constexpr uint32_t kStoreMagic = 0x3C85F7CE;
constexpr uint8_t kReady = 0, kNotReady = 1;
constexpr uint64_t kMaxValueBytes = 1 << 20;
constexpr double kStoreConnectS = 5;  // per address
constexpr int kStoreRetryMs = 50;
constexpr int kAskAgainMs = 10;

Encoder& put_string(Encoder* w, std::string_view s) { return (*w)(static_cast<uint64_t>(s.size())).raw(s); }

template <class T>
Expected<T> read_value(int fd, const Deadline& deadline, std::string_view doing) {
  char bytes[sizeof(T)];
  RONDO_TRY(read_exactly(fd, bytes, sizeof(bytes), deadline, doing));
  return Decoder({bytes, sizeof(bytes)}).get<T>();
}

}  // namespace

Expected<TorchStore> TorchStore::connect(const std::string& host, uint16_t port, const Deadline& deadline) {
  RONDO_TRY_ASSIGN(const std::vector<IpAddress> addresses, resolve(host));
  for (;;) {
    Status last;
    for (const IpAddress& address : addresses) {
      bool refused = false;
      auto fd = connect_tcp(address, port, deadline.at_most(kStoreConnectS), &refused);
      if (fd.ok()) {
        Encoder hello;
        hello(kValidate, kStoreMagic);
        RONDO_TRY(write_all(fd->get(), hello.bytes(), deadline, "greeting torch's store"));
        return TorchStore(std::move(*fd));
      }
      last = fd.status();
    }
    if (const Status s = deadline.pause(kStoreRetryMs, "connecting to torch's store"); !s.ok())
      return make_error(s.code(), "{}; last: {}", s.message(), last.message());
  }
}

Status TorchStore::set(const std::string& key, std::string_view value, const Deadline& deadline) {
  Encoder w;
  w(kSet);
  put_string(&w, key);
  put_string(&w, value);
  return write_all(fd_.get(), w.bytes(), deadline, "publishing the unique id in torch's store");
}

Expected<int64_t> TorchStore::add(const std::string& key, int64_t delta, const Deadline& deadline) {
  Encoder w;
  w(kAdd);
  put_string(&w, key)(delta);
  RONDO_TRY(write_all(fd_.get(), w.bytes(), deadline, "counting in torch's store"));
  return read_value<int64_t>(fd_.get(), deadline, "counting in torch's store");
}

Expected<std::string> TorchStore::get(const std::string& key, const Deadline& deadline) {
  const std::string doing = fmt::format("waiting for rank 0's unique id under '{}' in torch's store", key);
  Encoder check;
  check(kCheck, uint64_t{1});
  put_string(&check, key);
  for (;;) {
    RONDO_TRY(write_all(fd_.get(), check.bytes(), deadline, doing));
    RONDO_TRY_ASSIGN(const uint8_t answer, read_value<uint8_t>(fd_.get(), deadline, doing));
    if (answer == kReady) break;
    if (answer != kNotReady)
      return make_error(StatusCode::kMismatch,
                        "torch's store answered {} to CHECK: not the protocol of "
                        "PyTorch 2.1 and later",
                        answer);
    RONDO_TRY(deadline.pause(kAskAgainMs, doing));
  }
  Encoder query;
  query(kGet);
  put_string(&query, key);
  RONDO_TRY(write_all(fd_.get(), query.bytes(), deadline, doing));
  RONDO_TRY_ASSIGN(const uint64_t bytes, read_value<uint64_t>(fd_.get(), deadline, doing));
  if (bytes > kMaxValueBytes)
    return make_error(StatusCode::kMismatch, "torch's store announced a value of {} bytes", bytes);
  std::string value(bytes, '\0');
  RONDO_TRY(read_exactly(fd_.get(), value.data(), value.size(), deadline, doing));
  return value;
}

}  // namespace rondo
