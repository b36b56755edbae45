// Sets an environment variable in a scope.
#pragma once

#include <cstdlib>
#include <string>

namespace rondo::testing {

class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~EnvironmentVariable() { unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace rondo::testing
