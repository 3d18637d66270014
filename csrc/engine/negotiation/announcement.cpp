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

// Shared by reading and writing.
template <class Pass, class Item>
void pass_fields(Pass& pass, Item& item, uint8_t& kind, uint8_t& dtype, uint8_t& device, uint8_t& op) {
  auto& s = item.signature;
  pass(kind);
  pass(dtype);
  pass(device);
  pass(op);
  pass(s.root);
  pass(s.dims);
  pass(s.shape);
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
  const Signature& s = announcement.signature;
  auto kind = static_cast<uint8_t>(s.kind), dtype = static_cast<uint8_t>(s.dtype);
  auto device = static_cast<uint8_t>(s.device), op = static_cast<uint8_t>(s.op);
  Writer write;
  pass_fields(write, announcement, kind, dtype, device, op);
  return std::move(write.bytes) + announcement.name;
}

Announcement decode(std::string_view bytes) {
  Announcement announcement;
  Signature& s = announcement.signature;
  uint8_t kind = 0, dtype = 0, device = 0, op = 0;
  Reader read(bytes);
  pass_fields(read, announcement, kind, dtype, device, op);
  const bool known = kind < static_cast<uint8_t>(Kind::count) && dtype <= static_cast<uint8_t>(Dtype::count) &&
                     device <= 1 && op < static_cast<uint8_t>(Operator::custom);
  const bool extents = std::all_of(s.shape.begin(), s.shape.end(), [](int64_t extent) { return extent >= -1; });
  if (!known || !extents || s.dims < 0 || announcement.bytes < 0 || announcement.rows < 0)
    throw InvalidArgument("an announcement has invalid values");
  s.kind = static_cast<Kind>(kind);
  s.dtype = static_cast<Dtype>(dtype);
  s.device = device != 0;
  s.op = static_cast<Operator>(op);
  announcement.name = read.bytes;
  return announcement;
}

}  // namespace pc::engine
