// Status and Expected<T>, which every fallible call of rondo returns.
//
// RONDO_STATUS_CODES is the only table of codes. It generates the C++ enum, the texts and the remedies. The C
// constants in rondo.h have the same values. The first function that notices an error adds the facts (rank, peer,
// operation, step, errno). Callers pass it on unchanged with RONDO_TRY. Nothing is thrown.
//
// Thread safety: a Status is a value; concurrent reads are safe.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "rondo/rondo.h"

namespace rondo {

// X(name, value, text, remedy). Values are part of the C ABI: append only. A remedy must help with every error of its
// code; if there is no such remedy it is empty, and each message gives its own.
#define RONDO_STATUS_CODES(X)                                                                        \
  X(kOk, 0, "ok", "")                                                                                \
  X(kInvalidArgument, 1, "invalid argument", "")                                                     \
  X(kMismatch, 2, "ranks disagree on the operation",                                                 \
    "call the same operation with equal count, dtype and op on all ranks, in the same order")        \
  X(kTimeout, 3, "deadline passed", "see why the named rank is late, or raise the deadline")         \
  X(kPeerLost, 4, "a peer was lost", "restart the job, or make a new communicator of the survivors") \
  X(kAborted, 5, "aborted", "destroy the communicator and make a new one")                           \
  X(kSystem, 6, "system call failed", "")                                                            \
  X(kUnsupported, 7, "not supported", "")                                                            \
  X(kUnauthorized, 8, "peer does not hold the secret", "give all ranks the same unique id")          \
  X(kInProgress, 9, "not finished yet", "wait or test again")                                        \
  X(kInternal, 10, "internal error", "please report this with the message")                          \
  X(kExhausted, 11, "a limit was reached", "")                                                       \
  X(kCuda, 12, "a CUDA call failed", "")

enum class StatusCode : int {
#define RONDO_X(name, value, text, remedy) name = value,
  RONDO_STATUS_CODES(RONDO_X)
#undef RONDO_X
};

/// Returns the short text of a code, for example "a peer was lost". O(1).
RONDO_API std::string_view status_text(StatusCode code);
/// Returns the remedy for any error of this code; empty if each message gives its own.
RONDO_API std::string_view status_remedy(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : detail_(new Detail{code, std::move(message)}) {}
  Status(const Status& o) : detail_(o.detail_ ? new Detail(*o.detail_) : nullptr) {}
  Status(Status&&) noexcept = default;
  Status& operator=(const Status& o) {
    if (this != &o) detail_.reset(o.detail_ ? new Detail(*o.detail_) : nullptr);
    return *this;
  }
  Status& operator=(Status&&) noexcept = default;

  bool ok() const { return detail_ == nullptr; }
  StatusCode code() const { return detail_ ? detail_->code : StatusCode::kOk; }
  /// Returns the facts, without the code's text and remedy; empty if ok.
  std::string_view message() const { return detail_ ? std::string_view(detail_->message) : std::string_view(); }
  /// Returns the full text: "a peer was lost: rank 2 ... [restart the job, ...]".
  RONDO_API std::string to_string() const;

 private:
  struct Detail {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<Detail> detail_;
};

namespace internal {
/// Prints the status of an Expected without value, and aborts.
[[noreturn]] RONDO_API void no_value(const Status& status);
}  // namespace internal

/// A value, or the Status with the reason why there is none. It is a bug to read the value of an error: this prints the
/// status and aborts the process, in every build.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : v_(std::move(value)) {}                 // NOLINT(google-explicit-constructor)
  Expected(Status status) : v_(std::move(status)) {}          // NOLINT(google-explicit-constructor)
  bool ok() const { return v_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(v_); }
  T& value() {
    if (T* v = std::get_if<0>(&v_)) [[likely]]
      return *v;
    internal::no_value(status());
  }
  const T& value() const {
    if (const T* v = std::get_if<0>(&v_)) [[likely]]
      return *v;
    internal::no_value(status());
  }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> v_;
};

namespace internal {
[[noreturn]] inline void check_failed(const char* expr, const char* file, int line) {
  std::fprintf(stderr, "rondo: check failed: %s (%s:%d)\n", expr, file, line);
  std::abort();
}
}  // namespace internal

// Passes an error on to the caller.
#define RONDO_TRY(expr)                                     \
  do {                                                      \
    if (::rondo::Status rondo_try_ = (expr); !rondo_try_.ok()) return rondo_try_; \
  } while (0)
// RONDO_TRY_ASSIGN(auto x, call()): declares x from an Expected, or returns its error.
#define RONDO_CAT2(a, b) a##b
#define RONDO_CAT(a, b) RONDO_CAT2(a, b)
#define RONDO_TRY_ASSIGN(lhs, expr)                            \
  auto RONDO_CAT(rondo_e_, __LINE__) = (expr);                 \
  if (!RONDO_CAT(rondo_e_, __LINE__).ok()) return RONDO_CAT(rondo_e_, __LINE__).status(); \
  lhs = std::move(RONDO_CAT(rondo_e_, __LINE__).value())
// Checks a precondition inside the library. A failure is a bug in rondo and aborts.
#define RONDO_CHECK(cond) ((cond) ? (void)0 : ::rondo::internal::check_failed(#cond, __FILE__, __LINE__))

}  // namespace rondo
