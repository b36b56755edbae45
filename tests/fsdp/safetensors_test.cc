// Headers of safetensors files: round trips, and errors for other contents.
#include "fsdp/safetensors.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace rondo::fsdp {
namespace {

std::string with_length(const std::string& json, const std::string& data = "") {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return file + json + data;
}

TEST(Safetensors, AreReadAsTheyWereWritten) {
  Safetensors file;
  file.metadata = {{"format", "pt"}, {"note", "\"\\ \n \u00e9"}};
  for (int i = 0; i < kNumDtypes; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    file.tensors.push_back({std::string(dtype_name(dtype)), dtype, {3, static_cast<uint64_t>(i)}});
    EXPECT_EQ(safetensors_dtype(safetensors_name(dtype)), dtype);
  }
  file.tensors.push_back({"scalar \u00e9", Dtype::kFloat64, {}});
  const auto header = encode_safetensors(&file);
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ(header->size() % 8, 0u);
  uint64_t end = header->size();
  for (const TensorEntry& t : file.tensors) {
    EXPECT_EQ(t.begin, end) << t.name;
    EXPECT_EQ(t.begin % dtype_bytes(t.dtype), 0u) << t.name;
    end = t.end;
  }
  const auto back = decode_safetensors(*header, end, "f");
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->metadata, file.metadata);
  ASSERT_EQ(back->tensors.size(), file.tensors.size());
  for (const TensorEntry& t : file.tensors)
    EXPECT_EQ(std::count(back->tensors.begin(), back->tensors.end(), t), 1) << t.name;
}

TEST(Safetensors, WhatCannotBeWrittenIsNamed) {
  Safetensors twice{{}, {{"w", Dtype::kInt8, {1}}, {"w", Dtype::kInt8, {1}}}};
  EXPECT_NE(encode_safetensors(&twice).status().message().find("'w'"), std::string::npos);
  Safetensors reserved{{}, {{"__metadata__", Dtype::kInt8, {1}}}};
  EXPECT_FALSE(encode_safetensors(&reserved).ok());
  for (const uint64_t elems : {uint64_t{1} << 63, UINT64_MAX}) {
    Safetensors large{{}, {{"v", Dtype::kUint8, {elems}}, {"w", Dtype::kUint8, {elems}}}};
    EXPECT_NE(encode_safetensors(&large).status().message().find("more bytes than a file"), std::string::npos);
    Safetensors beyond{{}, {{"w", Dtype::kFloat64, {elems}}}};
    EXPECT_FALSE(encode_safetensors(&beyond).ok());
  }
  Safetensors bytes{{}, {{"\xC3", Dtype::kInt8, {1}}}};
  EXPECT_NE(encode_safetensors(&bytes).status().message().find("UTF-8"), std::string::npos);
}

TEST(Safetensors, DefectsAreNamed) {
  const struct {
    std::string file;
    std::initializer_list<const char*> words;
  } cases[] = {
      {"", {"less than 8 bytes"}},
      {"1234567", {"less than 8 bytes"}},
      {with_length("{}").substr(0, 9), {"should have 2 bytes"}},
      {std::string(8, '\xFF'), {"should have"}},
      {with_length(""), {"not a JSON object"}},
      {with_length("[]"), {"not a JSON object"}},
      {with_length("{\"a\""), {"not a JSON object"}},
      {with_length("{\"\xFF\": 1}"), {"not a JSON object"}},
      {with_length("{}", "x"), {"1 bytes at its end"}},
      {with_length(R"({"__metadata__": 1})"), {"__metadata__"}},
      {with_length(R"({"__metadata__": {"a": 1}})"), {"__metadata__ 'a'"}},
      {with_length(R"({"w": 1})"), {"'w'", "an object"}},
      {with_length(R"({"w": {"shape": [], "data_offsets": [0, 0]}})"), {"'w'", "dtype"}},
      {with_length(R"({"w": {"dtype": "F31", "shape": [], "data_offsets": [0, 0]}})"), {"'w'", "'F31'"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 0]}})"), {"'w'", "shape"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": 1, "data_offsets": [0, 0]}})"), {"'w'", "shape"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": [1.5], "data_offsets": [0, 0]}})"), {"'w'", "shape"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0]}})", "x"), {"'w'", "data_offsets"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": [1], "data_offsets": [1, 0]}})", "x"), {"'w'", "1 .. 0"}},
      {with_length(R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", "abcd"), {"'w'", "8 bytes"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}})", "x"), {"'w'", "cut off"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})", "xy"),
       {"'w'", "begins at byte 1"}},
      {with_length(R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                       "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}})",
                   "xyz"),
       {"'b'", "begins at byte 1", "ends at 2"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}})"),
       {"'w'", "more elements than memory"}},
      {with_length(R"({"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},
                       "w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})"),
       {"'w'", "twice"}},
  };
  for (const auto& c : cases) {
    const auto read = decode_safetensors(c.file, c.file.size(), "the/file");
    ASSERT_FALSE(read.ok()) << c.file;
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(read.status().message().find("'the/file'"), std::string::npos) << read.status().to_string();
    for (const char* w : c.words)
      EXPECT_NE(read.status().message().find(w), std::string::npos) << w << "\n" << read.status().to_string();
  }
}

// A length that fits the file but must be refused.
TEST(Safetensors, HeadersAreBounded) {
  std::string start;
  for (int i = 0; i < 8; ++i) start += static_cast<char>((kMostHeaderBytes + 8) >> (8 * i) & 0xFF);
  const auto read = decode_safetensors(start, uint64_t{1} << 40, "f");
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find("at most 100000000"), std::string::npos) << read.status().to_string();
}

}  // namespace
}  // namespace rondo::fsdp
