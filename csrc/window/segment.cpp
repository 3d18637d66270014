#include "window/segment.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/status.h"
#include "window/kinds.h"

namespace pc {
namespace {

struct SegmentKind {
  const char* name;
  std::shared_ptr<Segment> (*create)(size_t bytes);
  std::shared_ptr<Segment> (*attach)(const std::string& token, size_t bytes);
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

std::shared_ptr<Segment> attach_segment(const std::string& token, size_t bytes) {
  return kind_named(token.substr(0, token.find(':'))).attach(token, bytes);
}

char* map_shared(int fd, size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  madvise(address, bytes, MADV_HUGEPAGE);  // a hint; without it the kernel's default applies
  return static_cast<char*>(address);
}

void fail(const std::string& what) { throw SystemFailure(what + ": " + std::strerror(errno)); }

void refuse(const std::string& token, const std::string& why) {
  throw InvalidArgument("shared memory " + token + " is not attached: " + why);
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void parse_numbers(const std::string& token, const char* kind, std::initializer_list<uint64_t*> numbers) {
  const std::string start = std::string(kind) + ":";
  bool well_formed = token.starts_with(start);
  const char* at = token.data() + (well_formed ? start.size() : 0);
  const char* const end = token.data() + token.size();
  size_t left = numbers.size();
  for (uint64_t* number : numbers) {
    if (!well_formed) break;
    const auto [next, error] = std::from_chars(at, end, *number);  // accepts neither sign nor space
    well_formed = error == std::errc() && (--left == 0 ? next == end : next != end && *next == ':');
    if (left > 0 && well_formed) at = next + 1;
  }
  if (!well_formed) throw InvalidArgument("malformed token " + token);
}

std::string why_foreign(int fd, size_t bytes) {
  struct stat file{};
  struct statfs system{};
  if (fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0) fail("fstat");
  if (!S_ISREG(file.st_mode) || system.f_type != TMPFS_MAGIC) return "it is not memory";
  if (file.st_uid != geteuid())
    return "it belongs to uid " + std::to_string(file.st_uid) + ", not to " + std::to_string(geteuid());
  if ((file.st_mode & 07777) != 0600) return "other users may open it";
  if (file.st_size < 0 || static_cast<uint64_t>(file.st_size) != bytes)
    return "it has " + std::to_string(file.st_size) + " bytes, not " + std::to_string(bytes);
  return "";
}

}  // namespace pc
