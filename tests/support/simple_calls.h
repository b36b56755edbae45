// Small calls with known results, for tests of other things than data.
//
// Rank r's element i is (r + 1) * (i % 97 + 1): sums of up to a few hundred ranks are exact in float.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rondo/communicator.h"

namespace rondo::testing {

inline float simple_value(Rank rank, uint64_t elem) {
  return static_cast<float>(rank + 1) * static_cast<float>(elem % 97 + 1);
}
inline float simple_sum(int nranks, uint64_t elem) {
  return static_cast<float>(nranks * (nranks + 1) / 2) * static_cast<float>(elem % 97 + 1);
}

/// An in-place all_reduce (sum of float) with its data and its check.
class SimpleAllReduce {
 public:
  SimpleAllReduce(const Communicator& comm, uint64_t count_elems)
      : nranks_(comm.size()), rank_(comm.rank()), data_(count_elems) {
    for (uint64_t i = 0; i < count_elems; ++i) data_[i] = simple_value(comm.rank(), i);
  }
  Status start(Communicator& comm, Work* work, const CallOptions* options = nullptr) {
    return comm.all_reduce(data_.data(), data_.data(), data_.size(), Dtype::kFloat32, Op::kSum, options, work);
  }
  /// Empty if the result is right.
  std::string judge() const {
    for (uint64_t i = 0; i < data_.size(); ++i)
      if (data_[i] != simple_sum(nranks_, i))
        return "rank " + std::to_string(rank_) + ": element " + std::to_string(i) + " is " + std::to_string(data_[i]) +
               " instead of " + std::to_string(simple_sum(nranks_, i));
    return "";
  }

 private:
  int nranks_;
  Rank rank_;
  std::vector<float> data_;
};

inline ::testing::AssertionResult is_ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.to_string();
}
/// The code matches and the text contains all of the words.
inline ::testing::AssertionResult fails_with(const Status& status, StatusCode code,
                                             std::initializer_list<std::string> words) {
  const std::string text = status.to_string();
  if (status.code() != code)
    return ::testing::AssertionFailure() << "expected \"" << status_text(code) << "\", got: " << text;
  for (const std::string& word : words)
    if (text.find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "the text does not hold \"" << word << "\": " << text;
  return ::testing::AssertionSuccess();
}

/// A blocking all_reduce of 1000 floats gives the right sum.
inline ::testing::AssertionResult works(Communicator& comm, uint64_t count_elems = 1000) {
  SimpleAllReduce call(comm, count_elems);
  const Status status = call.start(comm, nullptr);
  if (!status.ok()) return ::testing::AssertionFailure() << status.to_string();
  const std::string wrong = call.judge();
  return wrong.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << wrong;
}

/// A second communicator of the same ranks; its id is sent over the first. Collective.
inline Expected<std::unique_ptr<Communicator>> second_communicator(Communicator& comm, const Config& config = {}) {
  UniqueId mine{};
  std::vector<UniqueId> ids(static_cast<size_t>(comm.size()));
  if (comm.rank() == 0) {
    RONDO_TRY_ASSIGN(mine, Communicator::make_unique_id());
  }
  RONDO_TRY(comm.all_gather(&mine, ids.data(), sizeof(UniqueId), Dtype::kUint8));
  return Communicator::init_rank(comm.size(), ids[0], comm.rank(), config);
}

}  // namespace rondo::testing
