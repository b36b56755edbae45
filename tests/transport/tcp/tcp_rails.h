// Three rails of one process that talk over loopback, and their received messages.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/simple_calls.h"
#include "transport/tcp/tcp_rail.h"

namespace rondo::net {

using testing::is_ok;

inline constexpr uint64_t kSession = 0x1234567890abcdef;

inline std::string text_of(uint64_t number, size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(number));
  std::string s(bytes, '\0');
  for (char& c : s) c = static_cast<char>(random());
  return s;
}

// Stores messages by step as strings, or where `landing` points.
class Reader final : public Sink {
 public:
  ReceiveTarget place(const Header& h, const HeaderLine&, size_t bytes, PostedReceiveUse use) override {
    EXPECT_NE(use, PostedReceiveUse::kNo);
    if (refuses) return {};
    if (posted_receive.claim(bytes, h.step)) return {posted_receive.place(), &posted_receive};
    if (waits && use == PostedReceiveUse::kSoon) {
      ++looks;
      return {nullptr, nullptr, true};
    }
    std::string& s = strings[h.step];
    s.resize(bytes);
    return {reinterpret_cast<std::byte*>(s.data())};
  }
  void arrived(const Header& h, const HeaderLine* line, const std::byte* data, size_t bytes) override {
    if (line == nullptr) strings[h.step].assign(reinterpret_cast<const char*>(data), bytes);
    else EXPECT_EQ(line->flag, h.step);
    order.push_back(h.step);
  }
  void fail_here(const Status& why) override { failures.emplace_back(why.message()); }
  std::map<uint64_t, std::string> strings;
  std::vector<uint64_t> order;
  std::vector<std::string> failures;
  PostedReceive posted_receive;
  bool refuses = false;
  bool waits = false;  // until the receive is posted
  int looks = 0;       // number of looks at a waiting message
};

class TcpRails : public ::testing::Test {
 protected:
  static constexpr Rank kRanks = 3;

  void SetUp() override { make(""); }
  void make(const std::string& device, const Sealer::Key* key = nullptr) {
    routes_.clear();
    for (Rank r = 0; r < kRanks; ++r) {
      readers_[r] = std::make_unique<Reader>();
      auto made = TcpRail::create(*readers_[r], {r, kRanks, device, {"127.0.0.1"}});
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      rails_[r] = std::move(*made);
      routes_.push_back({rails_[r]->address(), "127.0.0.1", true});
    }
    for (Rank r = 0; r < kRanks; ++r) {
      rails_[r]->set_peers(routes_, kSession);
      if (key != nullptr) rails_[r]->seal_with(Sealer::create(*key, r, kRanks));
    }
  }
  Rail& rail(Rank r) { return *rails_[r]; }
  Reader& reader(Rank r) { return *readers_[r]; }

  // With a line, as kData. It stays until the end.
  void send(Rank from, Rank to, uint64_t step, const std::string& data, ZeroCopySend* zero_copy = nullptr) {
    headers_.push_back(std::make_unique<DataHeader>());
    DataHeader& h = *headers_.back();
    h.header.kind = MessageKind::kData;
    h.header.session = kSession;
    h.header.from = from;
    h.header.step = step;
    h.line.flag = step;
    rail(from).send(to, h, reinterpret_cast<const std::byte*>(data.data()), data.size(), zero_copy);
  }
  // Returns true if rank 1's posted receive may still write to this text.
  bool may_write(const std::string& text) {
    return reader(1).posted_receive.may_write(reinterpret_cast<const std::byte*>(text.data()), text.size());
  }
  void send(Rank from, Rank to, uint64_t step, const char* text) {
    texts_.push_back(std::make_unique<std::string>(text));
    send(from, to, step, *texts_.back());
  }
  void send_short(Rank from, Rank to, uint64_t step, const std::string& data) {
    Header h;
    h.kind = MessageKind::kLines;
    h.step = step;
    rail(from).send_copy(to, h, data.data(), data.size());
  }
  // Progresses all rails until is_so() is true. Returns false after 20 s.
  bool until(const std::function<bool()>& is_so) {
    const uint64_t since = monotonic_ns();
    while (!is_so()) {
      if (monotonic_ns() - since > 20'000'000'000) return false;
      for (auto& r : rails_)
        if (r != nullptr) r->progress();
    }
    return true;
  }

  static ssize_t send_all(int fd, const std::string& data) {
    return ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
  }
  int connect_to(Rank r) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(std::strtoul(rail(r).address().c_str(), nullptr, 10)));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    return fd;
  }
  // Returns true if the rail closes the connection within 20 s.
  bool is_hung_up(int fd) {
    EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return until([&] {
      char any;
      const ssize_t n = recv(fd, &any, 1, 0);
      return n == 0 || (n < 0 && errno == ECONNRESET);
    });
  }

  std::vector<PeerRoute> routes_;
  std::unique_ptr<Reader> readers_[kRanks];
  std::unique_ptr<Rail> rails_[kRanks];
  std::vector<std::unique_ptr<DataHeader>> headers_;
  std::vector<std::unique_ptr<std::string>> texts_;
};

}  // namespace rondo::net
