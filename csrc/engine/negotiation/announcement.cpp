#include "engine/negotiation/announcement.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/status.h"

namespace pc::engine {
namespace {

class Writer {
 public:
  template <class T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string bytes;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes(bytes) {}
  template <class T>
  void operator()(T& value) {
    if (bytes.size() < sizeof value) throw InvalidArgument("an announcement is truncated");
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
  }
  std::string_view bytes;
};

// Shared by reading and writing.  `device`: the signature's; a byte that was read may be no bool.
template <class Pass, class Item, class Byte>
void pass_fields(Pass& pass, Item& item, Byte& device) {
  auto& s = item.signature;
  pass(s.kind);
  pass(s.dtype);
  pass(device);
  pass(s.op);
  pass(s.root);
  pass(s.dims);
  pass(s.shape);
  pass(s.axes);
  pass(s.prescale);
  pass(s.postscale);
  pass(s.group);
  pass(s.together);
  pass(item.priority);
  pass(item.bytes);
  pass(item.rows);
}

}  // namespace

uint64_t group_of(const std::vector<std::string>& names) {
  if (names.size() < 2) return 0;
  uint64_t hash = 0;  // a sum: the order does not matter
  for (const std::string& name : names) hash += hash_of(name).words[1];
  return hash | 1;
}

NameHash hash_of(std::string_view name) {
  NameHash hash{{14695981039346656037ull, name.size() + 0x9E3779B97F4A7C15ull}};
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    hash.words[0] = (hash.words[0] ^ byte) * 1099511628211ull;
    hash.words[1] = (hash.words[1] + byte) * 0xD6E8FEB86659FD93ull;
    hash.words[1] ^= hash.words[1] >> 32;
  }
  return hash;
}

std::string encode(const Announcement& announcement) {
  const auto device = static_cast<uint8_t>(announcement.signature.device);
  Writer write;
  pass_fields(write, announcement, device);
  return std::move(write.bytes) + announcement.name;
}

Announcement decode(std::string_view bytes) {
  Announcement announcement;
  Signature& s = announcement.signature;
  uint8_t device = 0;
  Reader read(bytes);
  pass_fields(read, announcement, device);
  const bool known = s.kind < Kind::count && s.dtype <= Dtype::count && device <= 1 && s.op < Operator::custom;
  const bool extents = std::all_of(s.shape.begin(), s.shape.end(), [](int64_t extent) { return extent >= -1; });
  if (!known || !extents || s.dims < 0 || announcement.bytes < 0 || announcement.rows < 0)
    throw InvalidArgument("an announcement has invalid values");
  s.device = device != 0;
  announcement.name = read.bytes;
  return announcement;
}

}  // namespace pc::engine
