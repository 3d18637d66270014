#include "executor/control.h"

#include <cstring>

namespace pc {
namespace {

constexpr const char* kNames[] = {"allreduce", "broadcast", "reduce",   "reduce_scatter", "allgather",
                                  "gather",    "scatter",   "alltoall", "barrier",        "send"};
static_assert(sizeof kNames / sizeof *kNames == static_cast<size_t>(Collective::count));

const char* describe_placement(uint8_t placement) {
  switch (placement) {
    case 0: return "plain arrays";
    case input_shared: return "input in a window";
    case output_shared: return "output in a window";
    case input_shared | output_shared: return "windows";
    default: return "windows, in place";
  }
}

}  // namespace

const char* name_of(Collective collective) { return kNames[static_cast<size_t>(collective)]; }

// FNV-1a over the fields (not over padding).
uint32_t Fingerprint::digest() const {
  uint32_t hash = 2166136261u;
  const auto mix = [&hash](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 16777619u;
  };
  mix(&count, sizeof count);
  mix(&detail, sizeof detail);
  mix(&root, sizeof root);
  mix(&prescale, sizeof prescale);
  mix(&postscale, sizeof postscale);
  const uint8_t small[] = {static_cast<uint8_t>(collective), static_cast<uint8_t>(op), static_cast<uint8_t>(dtype)};
  mix(small, sizeof small);
  mix(topology, strnlen(topology, sizeof topology));
  return hash;
}

std::string Fingerprint::describe() const {
  std::string text = std::string(name_of(collective)) + "(count=" + std::to_string(count) + ", dtype=" + name_of(dtype);
  const bool reduces = collective == Collective::allreduce || collective == Collective::reduce ||
                       collective == Collective::reduce_scatter;
  const auto cut = [](const char* from, size_t size) { return std::string(from, strnlen(from, size)); };
  if (reduces) text += ", op=" + cut(operation, sizeof operation);
  const auto factor = [&text](const char* name, double value) {
    char number[48];
    std::snprintf(number, sizeof number, ", %s=%g", name, value);
    if (value != 1.0) text += number;
  };
  factor("prescale", prescale);
  factor("postscale", postscale);
  if (root >= 0) text += ", root=" + std::to_string(root);
  text += ", topology=" + cut(topology, sizeof topology);
  text += std::string(", ") + describe_placement(placement);
  if (detail != 0) {
    char hex[24];
    std::snprintf(hex, sizeof hex, ", detail=%08x", static_cast<unsigned>(detail ^ (detail >> 32)));
    text += hex;
  }
  return text + ")";
}

}  // namespace pc
