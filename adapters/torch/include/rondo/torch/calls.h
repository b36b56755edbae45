// Calls of units. The wrapper around a call makes the unit's parameters available in forward and in backward. A module
// that was not sharded is called directly. Thread safety: as fully_shard.h.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "rondo/status.h"

namespace rondo::torch {

class Error : public std::runtime_error {
 public:
  explicit Error(const Status& status) : std::runtime_error(status.to_string()), code_(status.code()) {}
  StatusCode code() const { return code_; }

 private:
  StatusCode code_;
};

namespace internal {

class Core;
/// The core that has taken over this module's parameters, or nullptr. O(depth of its first parameter).
std::shared_ptr<Core> find(const ::torch::nn::Module& module);
std::shared_ptr<Core> find(const ::torch::Tensor& parameter);

/// The scope of a unit's call. `key` identifies the unit. A key of no unit does nothing.
class Use {
 public:
  Use(std::shared_ptr<Core> core, const void* key);
  ~Use();  // without leave(): after an exception
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  /// outputs: tensors at which backward begins.
  void leave(const std::vector<::torch::Tensor>& outputs);

 private:
  std::shared_ptr<Core> core_;
  uint64_t pass_ = 0;  // the pass of the call
  int call_ = -1;
};

template <class T>
inline constexpr bool is_pair_or_tuple = false;
template <class... T>
inline constexpr bool is_pair_or_tuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_pair_or_tuple<std::pair<A, B>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <class T>
concept RangeOfAny = requires(const T& t) {
  t.begin();
  t.end();
};

template <class T>
void collect_tensors(const T& value, std::vector<::torch::Tensor>* all) {
  if constexpr (std::is_convertible_v<const T&, ::torch::Tensor>) {
    all->push_back(value);
  } else if constexpr (is_optional<T>) {
    if (value) collect_tensors(*value, all);
  } else if constexpr (is_pair_or_tuple<T>) {
    std::apply([&](const auto&... each) { (collect_tensors(each, all), ...); }, value);
  } else if constexpr (RangeOfAny<T> && !std::is_convertible_v<const T&, std::string_view>) {
    for (const auto& each : value) collect_tensors(each, all);
  } else {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_convertible_v<const T&, std::string_view>,
                  "a unit returns a Tensor, or tuples, optionals and vectors of them: rondo must find its outputs");
  }
}

template <class F>
auto use(std::shared_ptr<Core> core, const void* key, F&& compute) -> std::decay_t<std::invoke_result_t<F&>> {
  if (core == nullptr) return compute();
  Use use(std::move(core), key);
  if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
    compute();
    use.leave({});
  } else {
    auto result = compute();
    std::vector<::torch::Tensor> outputs;
    collect_tensors(result, &outputs);
    use.leave(outputs);
    return result;
  }
}

}  // namespace internal

/// Calls module.forward(args...), as a unit if it is one.
template <class Impl, class... Args>
requires std::derived_from<Impl, ::torch::nn::Module>
auto call(Impl& module, Args&&... args) {
  return internal::use(internal::find(module), &static_cast<const ::torch::nn::Module&>(module),
                       [&] { return module.forward(std::forward<Args>(args)...); });
}
template <class Impl, class... Args>
auto call(const std::shared_ptr<Impl>& module, Args&&... args) {
  return call(*module, std::forward<Args>(args)...);
}
template <class Impl, class... Args>
auto call(const ::torch::nn::ModuleHolder<Impl>& module, Args&&... args) {
  return call(*module.ptr(), std::forward<Args>(args)...);
}

/// A torch::nn::ModuleHolder that calls its module with call().
template <class Impl>
class Holder : public ::torch::nn::ModuleHolder<Impl> {
 public:
  using ::torch::nn::ModuleHolder<Impl>::ModuleHolder;
  template <class... Args>
  auto operator()(Args&&... args) {
    return call(*this->impl_, std::forward<Args>(args)...);
  }
};

/// Use this instead of TORCH_MODULE(Name).
#define RONDO_TORCH_MODULE(Name)                           \
  class Name : public ::rondo::torch::Holder<Name##Impl> { \
   public:                                                 \
    using ::rondo::torch::Holder<Name##Impl>::Holder;      \
    using Impl [[maybe_unused]] = Name##Impl;              \
  }

/// The parameters of a free-form unit, by name. Tensors are handles, so the caller's tensors are sharded.
struct UnitParameters {
  std::string name;
  std::vector<std::pair<std::string, ::torch::Tensor>> parameters;
  std::shared_ptr<const char> key = std::make_shared<const char>('u');  // its address identifies the unit
};

template <class F>
class Unit {
 public:
  Unit(UnitParameters parameters, F function) : parameters_(std::move(parameters)), function_(std::move(function)) {}
  template <class... Args>
  auto operator()(Args&&... args) {
    auto core = parameters_.parameters.empty() ? nullptr : internal::find(parameters_.parameters[0].second);
    return internal::use(std::move(core), parameters_.key.get(),
                         [&] { return function_(std::forward<Args>(args)...); });
  }
  operator UnitParameters() const { return parameters_; }  // NOLINT(google-explicit-constructor)

 private:
  UnitParameters parameters_;
  F function_;
};

/// Makes a unit for shard_units from a function and the parameters that only this function uses. Call the unit instead
/// of the function.
template <class F>
Unit<F> wrap_unit(std::string name, F function, std::vector<std::pair<std::string, ::torch::Tensor>> parameters) {
  return Unit<F>({std::move(name), std::move(parameters)}, std::move(function));
}

}  // namespace rondo::torch
