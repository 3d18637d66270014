#include "engine/negotiation/signature.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "base/bits.h"
#include "executor/control.h"

namespace pc::engine {

RankSet RankSet::first(int32_t count) {
  RankSet all;
  for (int32_t r = 0; r < count; ++r) all.add(r);
  return all;
}

bool Signature::operator==(const Signature& other) const {
  const auto all = [](const Signature& s) {
    return std::tuple(s.kind, s.dtype, s.device, s.op, s.root, s.dims, s.shape, s.axes, bits_of(s.prescale),
                      bits_of(s.postscale), s.group, s.together);
  };
  return all(*this) == all(other);
}

bool Signature::fuses_with(const Signature& other) const {
  return is_fused(kind) && kind == other.kind && device == other.device && dtype == other.dtype && op == other.op &&
         bits_of(prescale) == bits_of(other.prescale) && bits_of(postscale) == bits_of(other.postscale);
}

std::string Signature::describe() const {
  std::string text = std::string(name_of(kind)) + "(";
  if (dtype != Dtype::count) {
    text += "shape=(";
    for (int32_t d = 0; d < std::min(dims, kMostDims); ++d) {
      const std::string extent = shape[d] < 0 ? "*" : std::to_string(shape[d]);
      text += (d > 0 ? ", " : "") + extent + (dims == 1 ? "," : "");
    }
    text += ")";
    for (uint32_t left = axes; left != 0; left >>= 4)
      text += (left == axes ? ", axes=(" : ", ") + std::to_string(static_cast<int>(left & 15) - 1);
    text += std::string(axes != 0 ? "), dtype=" : ", dtype=") + name_of(dtype);
  }
  if (traits(kind).reduces) text += std::string(", op=") + name_of(op);
  text += factor_text("prescale", prescale) + factor_text("postscale", postscale);
  if (device) text += ", on a GPU";
  if (root >= 0) text += ", root=" + std::to_string(root);
  if (group != 0) {
    char members[48];
    std::snprintf(members, sizeof members, ", in a group of %d [%04x]", together,
                  static_cast<unsigned>(group & 0xffff));
    text += members;
  }
  return text + ")";
}

}  // namespace pc::engine
