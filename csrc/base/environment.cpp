#include "base/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/status.h"

namespace pc {
namespace {

constexpr double kMost = 1e15;  // also replaces infinity: fits an integer

// Reads a number as Setting.parse in pycollective/settings.py does; std::strtod would depend on the locale.
double number(const char* name, double fallback, const char* expected) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  const char* begin = *text == '+' ? text + 1 : text;
  const char* end = text + std::strlen(text);
  double value = -1.0;
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error == std::errc::result_out_of_range) value = std::strchr(begin, '-') != nullptr ? 0.0 : kMost;
  if (error == std::errc::invalid_argument || rest != end || *begin == '-' || !(value >= 0))
    throw InvalidArgument(std::string(name) + "='" + text + "' is not " + expected);
  return std::min(value, kMost);
}

Environment read() {
  Environment e;
#define PC_READ(field, name, fallback, expected, unit, meaning) e.field = number(name, fallback, expected);
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
