// Queries of element types and operators that need no kernels; the GPU module is linked without those.
#include <string>

#include "base/status.h"
#include "dtype/table.h"

namespace pc {

const char* name_of(Dtype dtype) {
  if (dtype == Dtype::bool_) return "bool";  // the enumerator carries an underscore: bool is a keyword
  constexpr const char* names[] = {
#define PC_NAME(name, type, kind) #name,
      PC_DTYPES(PC_NAME)
#undef PC_NAME
  };
  return dtype < Dtype::count ? names[static_cast<size_t>(dtype)] : "unknown";
}

Dtype find_dtype(std::string_view name) {
  for (size_t i = 0; i < static_cast<size_t>(Dtype::count); ++i)
    if (name == name_of(static_cast<Dtype>(i))) return static_cast<Dtype>(i);
  return Dtype::count;
}

Dtype dtype_named(std::string_view name) {
  const Dtype dtype = find_dtype(name);
  if (dtype == Dtype::count) throw WrongType("no collective takes element type " + std::string(name));
  return dtype;
}

const char* name_of(Operator op) {
  switch (op) {
#define PC_CASE(name, functor, takes, meaning) \
  case Operator::name: return #name;
    PC_OPERATORS(PC_CASE)
#undef PC_CASE
    case Operator::custom: return "custom";
    default: return "unknown";
  }
}

bool takes(Operator op, Dtype dtype) {
  if (dtype >= Dtype::count) return false;
  switch (op) {
#define PC_CASE(name, functor, takes, meaning) \
  case Operator::name: return ((takes) & taken_kind(kind_of(dtype))) != 0;
    PC_OPERATORS(PC_CASE)
#undef PC_CASE
    default: return op == Operator::custom;
  }
}

}  // namespace pc
