// The element types and the reduction operators: the only lists of them.
// C++ dispatch, the Python names, the tests and the documentation are all read from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pc {

enum class Kind : uint8_t { boolean, signed_integer, unsigned_integer, real };

// Storage of the 16- and 8-bit floating-point types; arithmetic happens in float.
struct float16 { uint16_t bits; };
struct bfloat16 { uint16_t bits; };
struct float8_e4m3fn { uint8_t bits; };
struct float8_e5m2 { uint8_t bits; };
struct boolean { uint8_t bits; };

// clang-format off
// X(name, C++ type, kind)
#define PC_DTYPES(X)                                   \
  X(bool_, ::pc::boolean, boolean)                     \
  X(int8, int8_t, signed_integer)                      \
  X(int16, int16_t, signed_integer)                    \
  X(int32, int32_t, signed_integer)                    \
  X(int64, int64_t, signed_integer)                    \
  X(uint8, uint8_t, unsigned_integer)                  \
  X(uint16, uint16_t, unsigned_integer)                \
  X(uint32, uint32_t, unsigned_integer)                \
  X(uint64, uint64_t, unsigned_integer)                \
  X(float16, ::pc::float16, real)                      \
  X(bfloat16, ::pc::bfloat16, real)                    \
  X(float32, float, real)                              \
  X(float64, double, real)                             \
  X(float8_e4m3fn, ::pc::float8_e4m3fn, real)          \
  X(float8_e5m2, ::pc::float8_e5m2, real)
// clang-format on

enum class Dtype : uint8_t {
#define PC_ENUM(name, type, kind) name,
  PC_DTYPES(PC_ENUM)
#undef PC_ENUM
      count
};

// Which kinds of element an operator takes.
enum Takes : uint8_t { takes_bool = 1, takes_integer = 2, takes_real = 4, takes_all = 7 };

// clang-format off
// X(name, functor in operators.h, kinds it takes, what it computes)
#define PC_OPERATORS(X)                                                                       \
  X(sum, Sum, takes_all, "a + b (logical or for bool)")                                       \
  X(avg, Sum, takes_integer | takes_real, "the sum divided by the number of ranks")           \
  X(prod, Product, takes_all, "a * b (logical and for bool)")                                 \
  X(min, Minimum, takes_all, "the smaller; NaN wins")                                         \
  X(max, Maximum, takes_all, "the larger; NaN wins")                                          \
  X(band, BitAnd, takes_bool | takes_integer, "bitwise and")                                  \
  X(bor, BitOr, takes_bool | takes_integer, "bitwise or")                                     \
  X(bxor, BitXor, takes_bool | takes_integer, "bitwise exclusive or")                         \
  X(land, LogicalAnd, takes_all, "1 where both are nonzero, else 0")                          \
  X(lor, LogicalOr, takes_all, "1 where either is nonzero, else 0")
// clang-format on

enum class Operator : uint8_t {
#define PC_ENUM(name, functor, takes, meaning) name,
  PC_OPERATORS(PC_ENUM)
#undef PC_ENUM
      custom,  // a user's own function, called per block
  count
};

constexpr uint8_t taken_kind(Kind kind) {
  return kind == Kind::boolean ? takes_bool : kind == Kind::real ? takes_real : takes_integer;
}

// Bytes of one element.
constexpr size_t size_of(Dtype dtype) {
  constexpr size_t sizes[] = {
#define PC_SIZE(name, type, kind) sizeof(type),
      PC_DTYPES(PC_SIZE)
#undef PC_SIZE
  };
  return sizes[static_cast<size_t>(dtype)];
}

const char* name_of(Dtype dtype);
Dtype find_dtype(std::string_view name);   // count: there is none of that name
Dtype dtype_named(std::string_view name);  // throws WrongType for such
const char* name_of(Operator op);
bool takes(Operator op, Dtype dtype);

}  // namespace pc
