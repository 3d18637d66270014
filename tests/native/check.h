// A small test framework: TEST(name) { ... } registers, CHECK(...) counts, main() in check.cpp runs the tests named by
// its arguments.
#pragma once

#include <sstream>
#include <string>

namespace pc::test {

struct Registered { Registered(const char* name, void (*body)()); };

// Records a failure and continues; the process then exits with 1.  Thread-safe.
void fail(const char* file, int line, const std::string& what);

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace pc::test

#define PC_TEST(name)                                           \
  static void name();                                           \
  static const ::pc::test::Registered name##_row{#name, &name}; \
  static void name()

// CHECK(condition, "what it means", value, ...): the values are printed after the message.
#define PC_CHECK(condition, ...) \
  ((condition) ? void() : ::pc::test::fail(__FILE__, __LINE__, ::pc::test::text(#condition, ": ", ##__VA_ARGS__)))

// The statement must throw Exception.
#define PC_CHECK_THROWS(Exception, statement, ...)                                                         \
  [&] {                                                                                                    \
    try {                                                                                                  \
      statement;                                                                                           \
    } catch (const Exception&) {                                                                           \
      return;                                                                                              \
    } catch (const std::exception& other) {                                                                \
      return ::pc::test::fail(__FILE__, __LINE__,                                                          \
                              ::pc::test::text(#statement, " threw ", other.what(), ": ", ##__VA_ARGS__)); \
    }                                                                                                      \
    ::pc::test::fail(__FILE__, __LINE__, ::pc::test::text(#statement, " did not throw: ", ##__VA_ARGS__)); \
  }()
