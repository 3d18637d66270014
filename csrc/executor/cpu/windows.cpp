#include "executor/cpu/windows.h"

#include <algorithm>
#include <string>

#include "base/status.h"

namespace pc {

void Windows::add(int64_t id, WindowView view, int32_t local) {
  const std::lock_guard lock(mutex_);
  if (views_.contains(id)) throw InvalidArgument("window " + std::to_string(id) + " exists already");
  if (at_.contains(part(view, local))) throw InvalidArgument("a window exists in this memory already");
  any_ = true;
  views_[id] = view;
  at_[part(view, local)] = id;
}

void Windows::remove(int64_t id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(at_, [&](const auto& each) { return each.second == id; });
  views_.erase(id);
}

Location Windows::locate(const void* address, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const char* const begin = static_cast<const char*>(address);
  auto next = at_.upper_bound(begin);
  if (next == at_.begin()) return {};
  const auto& [start, id] = *--next;
  if (begin + bytes > start + views_.at(id).bytes) return {};
  return {id, begin - start};
}

char* Windows::address(int32_t local, Location at) const {
  const std::lock_guard lock(mutex_);
  const auto found = views_.find(at.window);
  if (found == views_.end() || at.offset < 0 || at.offset > found->second.bytes) return nullptr;
  return part(found->second, local) + at.offset;
}

}  // namespace pc
