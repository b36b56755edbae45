// FakeTorchStore: the store of torchrun's agent, with the functions that rondo uses.
// Thread safety: its own threads serve; port() and num_keys() may be called meanwhile.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "bootstrap/socket.h"

namespace rondo::testing {

// Implements the documented subset of PyTorch's protocol strictly: unexpected input ends the connection.
class FakeTorchStore {
 public:
  /// On loopback or the given address; port 0: a free one. The program ends if it cannot listen.
  explicit FakeTorchStore(IpAddress at = {.bytes = {127, 0, 0, 1}}, uint16_t port = 0)
      : listeners_(std::move(*listen_tcp({at}, port))), acceptor_([this] { accept(); }) {}
  ~FakeTorchStore() {
    stop_ = true;
    acceptor_.join();
    for (std::thread& t : servers_) t.join();
  }
  std::string port() const { return std::to_string(listeners_.port); }
  size_t num_keys() {
    const std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  void accept() {
    while (!stop_) {
      pollfd p{listeners_.sockets[0].get(), POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      std::string who;
      Fd fd = accept_one(p.fd, &who);
      servers_.emplace_back([this, fd = std::move(fd)] { serve(fd.get()); });
    }
  }
  template <class T>
  bool take(int fd, T* value) {
    return read_exactly(fd, value, sizeof(*value), deadline_, "serve").ok();
  }
  bool take(int fd, std::string* s) {
    uint64_t bytes = 0;
    if (!take(fd, &bytes) || bytes > 4096) return false;
    s->resize(bytes);
    return read_exactly(fd, s->data(), bytes, deadline_, "serve").ok();
  }
  void serve(int fd) {
    uint8_t query = 0;
    uint32_t magic = 0;
    if (!take(fd, &query) || query != 0 || !take(fd, &magic) || magic != 0x3C85F7CE) return;
    while (take(fd, &query) && answer(fd, query)) {
    }
  }
  bool answer(int fd, uint8_t query) {
    std::string key, value;
    Encoder w;
    uint64_t num_keys = 1;
    if (query == 5 && (!take(fd, &num_keys) || num_keys != 1)) return false;
    if (!take(fd, &key)) return false;
    int64_t delta = 0;
    if (query == 1 && !take(fd, &value)) return false;
    if (query == 4 && !take(fd, &delta)) return false;
    const std::lock_guard lock(mutex_);
    switch (query) {
      case 1: values_[key] = value; return true;
      case 3:
        if (values_.count(key) == 0) return false;
        w(static_cast<uint64_t>(values_[key].size())).raw(values_[key]);
        break;
      case 4:
        delta += std::atoll(values_[key].c_str());
        values_[key] = std::to_string(delta);
        w(delta);
        break;
      case 5: w(static_cast<uint8_t>(values_.count(key) == 1 ? 0 : 1)); break;
      default: return false;
    }
    return write_all(fd, w.bytes(), deadline_, "serve").ok();
  }

  std::atomic<bool> stop_ = false;
  const Deadline deadline_{20, &stop_};
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  Listeners listeners_;
  std::vector<std::thread> servers_;
  std::thread acceptor_;
};

}  // namespace rondo::testing
