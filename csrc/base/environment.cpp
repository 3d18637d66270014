#include "base/environment.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/status.h"

namespace pc {
namespace {

constexpr double kMost = 1e15;  // also of what is infinite: an integer holds it

double number(const char* name, double fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != '\0' || !(value >= 0))
    throw InvalidArgument(std::string(name) + "='" + text + "' is no number of at least 0");
  return std::min(value, kMost);
}

Environment read() {
  Environment e;
#define PC_READ(field, name, fallback, meaning) e.field = number(name, fallback);
  PC_ENVIRONMENT(PC_READ)
#undef PC_READ
  e.timeout = std::min(e.timeout, kLongestTimeout);
  return e;
}

}  // namespace

const Environment& environment() {
  static const Environment instance = read();
  return instance;
}

}  // namespace pc
