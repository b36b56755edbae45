// frame_relay: a switch between network interfaces, with a delay and losses: `frame_relay --delay-ms 1 port0 port1`.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "support/frame_relay.h"

int main(int argc, char** argv) {
  rondo::testing::ProxyOptions options;
  std::vector<std::string> interfaces;
  CLI::App app{"Forwards frames between network interfaces, late and not always; prints 'ready' when it does"};
  app.add_option("interfaces", interfaces, "two or more, in this network namespace")->required()->expected(2, 64);
  app.add_option("--delay-ms", options.delay_ms, "delay one way")->check(CLI::Range(0.0, 10000.0));
  app.add_option("--loss", options.loss, "share of lost frames")->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.seed, "random seed of the losses");
  CLI11_PARSE(app, argc, argv);
  options.ready_fd = 1;
  std::fprintf(stderr, "frame_relay: %s\n", rondo::testing::relay_frames(interfaces, options).c_str());
  return 1;
}
