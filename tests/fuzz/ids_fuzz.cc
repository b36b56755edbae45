// libFuzzer: unique ids as bytes and as hex digits, and rank 0's messages with an id. The first byte selects.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "bootstrap/unique_id.h"
#include "launch/id_handout.h"
#include "launch/launch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  if (bytes == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  rondo_unique_id id = {};
  switch (data[0] % 4) {
    case 0: {
      const auto from_hex = unique_id_from_hex(std::string(text));
      if (!from_hex.ok()) break;
      std::string lower(text);
      std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) { return c >= 'A' && c <= 'F' ? c + 32 : c; });
      if (unique_id_to_hex(*from_hex) != lower) std::abort();
      break;
    }
    case 1: {  // with a correct checksum, else the code after it is never reached
      std::memcpy(id.bytes, text.data(), std::min(text.size(), sizeof(id.bytes)));
      const auto sum = static_cast<uint32_t>(fnv1a({id.bytes, 124}));
      for (int i = 0; i < 4; ++i) id.bytes[124 + i] = static_cast<char>(sum >> (8 * i));
      const auto contents = decode_id(id);
      if (!contents.ok()) break;
      if (contents->addresses.empty() || contents->addresses.size() > IdContents::kMaxAddresses) std::abort();
      const auto again = decode_id(encode_id(*contents));
      if (!again.ok() || again->port != contents->port || again->secret != contents->secret) std::abort();
      break;
    }
    case 2: {
      const auto rank = decode_id_request(text, 3);
      if (rank && (*rank < 1 || *rank > 2)) std::abort();
      break;
    }
    default:
      if (!text.empty() && text[0] != 0 && decode_id_answer(static_cast<uint8_t>(text[0]), text.substr(1), &id).ok())
        std::abort();
      if (decode_id_answer(0, text, &id).ok() != (text.size() == sizeof(id.bytes))) std::abort();
  }
  return 0;
}
