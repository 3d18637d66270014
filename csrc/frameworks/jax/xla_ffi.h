// What is used of XLA's typed foreign function interface (xla/ffi/api/c_api.h, major version 0): a C ABI, declared here
// so that the build needs no jaxlib.  Every struct begins with its size, which handlers check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pc::xla {

inline constexpr int kMajor = 0;

struct Extension {
  size_t size;
  int type;
  Extension* next;
};
inline constexpr int kMetadataExtension = 1;

struct Version {
  size_t size;
  Extension* extensions;
  int major, minor;
};

struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;  // XLA's

enum class Code : int { invalid_argument = 3, internal = 13 };

struct ErrorCreateArgs {
  size_t size;
  Extension* extensions;
  const char* message;
  Code code;
};

struct Api {  // its first functions
  size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorCreateArgs*);
};

enum class Type : int { token = 17 };  // of the element types only this one has a meaning here

struct Buffer {
  size_t size;
  Extension* extensions;
  Type type;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Buffers {  // arguments, or results
  size_t size;
  Extension* extensions;
  int64_t count;
  int* kinds;  // 1: a Buffer
  void** values;
};

struct Text {
  const char* data;
  size_t length;
};

struct Scalar {
  int type;
  void* value;
};
inline constexpr int kScalarAttribute = 3;
inline constexpr int kInt64 = 5;

struct Attributes {
  size_t size;
  Extension* extensions;
  int64_t count;
  int* kinds;
  Text** names;
  void** values;
};

enum class Stage : int { execute = 3 };

struct CallFrame {
  size_t size;
  Extension* extensions;
  const Api* api;
  void* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

using Handler = Error*(CallFrame*);

// True: XLA has only asked which version the handler is for (answered with XLA's own if it is one that these structs
// describe, else with one that XLA refuses), or for a stage in which a handler has nothing to do.
bool is_question(CallFrame* frame);

// The value of the attribute "call".  Throws InvalidArgument.
int64_t call_number(const CallFrame& frame);

// The first of the arguments or results that is an array; null if there is none: the others are tokens.
const Buffer* first_array(const Buffers& buffers);

// Bytes per element times the number of elements.
int64_t bytes_of(const Buffer& buffer, int64_t element);

Error* error(const CallFrame& frame, const std::string& message, Code code = Code::internal);

// What the current exception reports, as XLA's error: the name of its Python class and its text.
Error* current_error(const CallFrame& frame);

}  // namespace pc::xla
