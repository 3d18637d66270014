#include "base/environment.h"

#include <cstdlib>

namespace pc {
namespace {

double number(const char* name, double fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  return *end == '\0' && value >= 0 ? value : fallback;
}

Environment read() {
  Environment e;
#define PC_READ(field, name, fallback, meaning) e.field = number(name, fallback);
  PC_ENVIRONMENT(PC_READ)
#undef PC_READ
  return e;
}

}  // namespace

const Environment& environment() {
  static const Environment instance = read();
  return instance;
}

}  // namespace pc
