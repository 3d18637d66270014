#include "window/segment.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "window/kinds.h"

namespace pc {
namespace {

struct SegmentKind {
  const char* name;
  std::shared_ptr<Segment> (*create)(size_t bytes);
  std::shared_ptr<Segment> (*attach)(const std::string& token);
};

constexpr SegmentKind kKinds[] = {
    {"memfd", create_memfd, attach_memfd},
    {"posix_shm", create_posix_shm, attach_posix_shm},
    {"local", create_local, attach_local},
};

const SegmentKind& kind_named(const std::string& name) {
  for (const SegmentKind& kind : kKinds)
    if (name == kind.name) return kind;
  throw InvalidArgument("unknown kind of shared memory: " + name);
}

}  // namespace

std::shared_ptr<Segment> create_segment(const std::string& kind, size_t bytes) {
  return kind_named(kind).create(bytes);
}

std::shared_ptr<Segment> attach_segment(const std::string& token) {
  return kind_named(token.substr(0, token.find(':'))).attach(token);
}

char* map_shared(int fd, size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  madvise(address, bytes, MADV_HUGEPAGE);  // a hint; without it the kernel's default applies
  return static_cast<char*>(address);
}

void fail(const std::string& what) { throw SystemFailure(what + ": " + std::strerror(errno)); }

}  // namespace pc
