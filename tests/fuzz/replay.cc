// Runs a fuzz target on its seeds and on similar inputs: every prefix of a seed, and each byte changed in four ways,
// reduced to some hundreds per seed. The inputs are the same in every run. A failure of the target ends the process.
//
// replay FOLDER: every file of the folder is a seed. No seeds is an error.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

namespace {

constexpr size_t kMostOfAKind = 60;  // prefixes, and positions at which a byte is changed

void run(const std::string& input) {
  // An exact copy, so that AddressSanitizer detects a read past the end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

size_t replay(const std::string& seed) {
  run(seed);
  size_t runs = 1;
  const size_t stride = seed.size() <= 128 ? 1 : (seed.size() / kMostOfAKind + 1) | 1;  // odd: any byte of a word
  for (size_t at = 0; at < seed.size(); at += stride) {
    run(seed.substr(0, at));
    for (const int other : {0x00, 0xFF, seed[at] ^ 1, seed[at] ^ 0x80}) {
      std::string changed = seed;
      changed[at] = static_cast<char>(other);
      run(changed);
    }
    runs += 5;
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) seeds.push_back(entry.path());
  std::sort(seeds.begin(), seeds.end());
  for (const std::filesystem::path& path : seeds) {
    std::ifstream file(path, std::ios::binary);
    const std::string seed((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::printf("%s: ", path.c_str());
    std::fflush(stdout);  // must be visible if the target ends the process
    std::printf("%zu runs\n", replay(seed));
  }
  return seeds.empty() ? 1 : 0;
}
