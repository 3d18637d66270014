// Shared memory of every kind: created, attached by another process, sealed, and removed without a trace.
#include "window/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/status.h"
#include "check.h"

namespace pc::test {
namespace {

constexpr const char* kShared[] = {"memfd", "posix_shm"};
constexpr const char* kKinds[] = {"memfd", "posix_shm", "local"};
constexpr size_t kBytes = 3 << 20;

// How many entries of a folder have this text in their names.
int64_t entries(const char* folder, const std::string& part = "") {
  const std::filesystem::directory_iterator all(folder);
  return std::count_if(begin(all), end(all), [&](const auto& entry) {
    return entry.path().filename().string().find(part) != std::string::npos;
  });
}

int64_t own_names() { return entries("/dev/shm", text("-", getpid(), "-")); }
int64_t open_files() { return entries("/proc/self/fd"); }

PC_TEST(segment_is_seen_by_another_process) {
  for (const char* kind : kShared) {
    const int64_t files = open_files();
    static_cast<void>(create_segment(kind, kBytes));
    PC_CHECK(own_names() == 0, kind, " left a name that was not sealed");
    {
      const auto mine = create_segment(kind, kBytes);
      mine->reserve(0, kBytes);
      PC_CHECK(mine->bytes() == kBytes, kind);
      PC_CHECK(std::all_of(mine->data(), mine->data() + kBytes, [](char c) { return c == 0; }), kind,
               " begins as zeros");
      mine->data()[0] = 'a';
      const std::string token = mine->token();
      const pid_t child = fork();
      if (child == 0) {
        const auto theirs = attach_segment(token, kBytes);
        const bool same = theirs->bytes() == kBytes && theirs->data()[0] == 'a';
        theirs->data()[kBytes - 1] = 'z';
        _exit(same ? 0 : 1);
      }
      int status = -1;
      waitpid(child, &status, 0);
      PC_CHECK(status == 0, kind, ": the child ended with ", status);
      PC_CHECK(mine->data()[kBytes - 1] == 'z', kind, ": what the child wrote");
      mine->seal();
      mine->data()[1] = 'b';  // still mapped
      PC_CHECK(own_names() == 0, kind, " has a name after seal()");
      PC_CHECK_THROWS(SystemFailure, attach_segment(token, kBytes), kind, " attached after seal()");
    }
    PC_CHECK(own_names() == 0, kind, " left a name");
    PC_CHECK(open_files() == files, kind, " left open files");
  }
}

PC_TEST(segment_attached_here_is_the_same_memory) {
  for (const char* kind : kKinds) {
    const auto mine = create_segment(kind, kBytes);
    const auto theirs = attach_segment(mine->token(), kBytes);
    theirs->data()[5] = 'x';
    PC_CHECK(mine->data()[5] == 'x' && theirs->bytes() == kBytes, kind);
    PC_CHECK((mine == theirs) == (std::strcmp(kind, "local") == 0), kind);
  }
}

PC_TEST(segment_of_this_process_ends_with_its_last_holder) {
  auto first = create_segment("local", kBytes);
  const std::string token = first->token();
  auto second = attach_segment(token, kBytes);
  first.reset();
  second->data()[kBytes - 1] = 'x';
  second.reset();
  PC_CHECK_THROWS(InvalidArgument, attach_segment(token, kBytes), "after its end");
}

PC_TEST(segment_too_large_is_an_error_that_leaves_nothing) {
  constexpr size_t kTooLarge = size_t{1} << 50;  // more than the address space
  const int64_t files = open_files();
  for (const char* kind : kKinds) {
    PC_CHECK_THROWS(SystemFailure, create_segment(kind, kTooLarge), kind);
    PC_CHECK(own_names() == 0, kind, " left a name");
  }
  struct statvfs room{};
  if (statvfs("/dev/shm", &room) == 0 && room.f_blocks > 0) {
    const auto segment = create_segment("posix_shm", 2 * room.f_blocks * room.f_frsize);
    PC_CHECK_THROWS(SystemFailure, segment->reserve(0, segment->bytes()), "more than /dev/shm holds");
  }
  PC_CHECK(own_names() == 0 && open_files() == files, "left something");
}

// Tokens that a foreign process could write.  What they name must not be touched.
PC_TEST(segment_tokens_that_name_nothing_of_ours_are_refused) {
  const auto mine = create_segment("memfd", kBytes);
  const std::string sealed = mine->token();
  for (const std::string& token :
       {std::string("granite:1"), std::string("memfd"), std::string("memfd:nonsense"), std::string("memfd:1:2"),
        "memfd:-" + sealed.substr(6), "memfd: " + sealed.substr(6), sealed + " ", sealed + ":1", sealed + "1",
        "memfd:/etc/passwd:" + std::to_string(kBytes), std::string("posix_shm:nonsense"),
        std::string("posix_shm:/pycollective-none:4096"), std::string("posix_shm:/../etc/passwd:4096"),
        std::string("local:nonsense"), std::string("local:4000000000"), std::string("local:99999999999999999999")})
    PC_CHECK_THROWS(InvalidArgument, attach_segment(token, kBytes), token);
  PC_CHECK_THROWS(InvalidArgument, create_segment("granite", 4096), "unknown kind");
  for (const char* kind : kKinds) {
    const auto segment = create_segment(kind, kBytes);
    PC_CHECK_THROWS(InvalidArgument, attach_segment(segment->token(), kBytes - 1), kind, " of another size");
  }
  PC_CHECK_THROWS(SystemFailure, attach_segment("memfd:1073741824:3:4096", 4096), "no such process");
}

PC_TEST(segment_that_is_no_memfd_of_ours_is_refused) {
  const auto token = [](int fd) { return "memfd:" + std::to_string(getpid()) + ":" + std::to_string(fd) + ":4096"; };
  const auto refused = [&](int fd, const char* what) {
    PC_CHECK(fd >= 0, what);
    PC_CHECK_THROWS(InvalidArgument, attach_segment(token(fd), 4096), what);
    close(fd);
  };
  char path[] = "/tmp/pycollective-test-XXXXXX";
  const int file = mkstemp(path);
  PC_CHECK(ftruncate(file, 4096) == 0, "a file");
  refused(file, "a file on a disk");
  unlink(path);
  const int unsealed = memfd_create("pycollective", MFD_ALLOW_SEALING);
  PC_CHECK(ftruncate(unsealed, 4096) == 0 && fchmod(unsealed, 0600) == 0, "a memfd");
  refused(unsealed, "a memfd that may shrink");
  const int open_to_all = memfd_create("pycollective", MFD_ALLOW_SEALING);
  PC_CHECK(ftruncate(open_to_all, 4096) == 0 &&
               fcntl(open_to_all, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
           "a memfd");
  refused(open_to_all, "a memfd of mode 0777");
  refused(open("/dev/zero", O_RDWR), "a device");
  int ends[2] = {-1, -1};
  PC_CHECK(pipe(ends) == 0, "a pipe");
  refused(ends[0], "a pipe");
  close(ends[1]);
}

PC_TEST(segment_sweep_leaves_files_of_others_alone) {
  const std::string digits(32, 'e'), folder = "/dev/shm/";
  const std::string file = folder + "pycollective-1-" + digits, fifo = folder + "pycollective-2-" + digits;
  const std::string link = folder + "pycollective-3-" + digits;
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  PC_CHECK(fd >= 0 && ftruncate(fd, 8192) == 0, "without the magic number");
  const struct timespec old[2] = {{1000, 0}, {1000, 0}};  // as if it had been there for years
  PC_CHECK(futimens(fd, old) == 0 && mkfifo(fifo.c_str(), 0600) == 0 && symlink(file.c_str(), link.c_str()) == 0, "");
  static_cast<void>(create_segment("posix_shm", 4096));
  for (const std::string& path : {link, fifo, file}) {
    PC_CHECK_THROWS(InvalidArgument, attach_segment("posix_shm:" + path.substr(folder.size()) + ":4096", 4096), path);
    PC_CHECK(unlink(path.c_str()) == 0, path, " has been removed");
  }
  close(fd);
}

PC_TEST(segment_whose_creator_was_killed_is_swept) {
  int ends[2] = {-1, -1};
  PC_CHECK(pipe(ends) == 0, "a pipe");
  const pid_t child = fork();
  if (child == 0) {
    const auto segment = create_segment("posix_shm", 4096);
    const std::string token = segment->token();
    const ssize_t written = write(ends[1], token.data(), token.size());
    if (written > 0) pause();
    _exit(1);
  }
  char token[200] = "";
  PC_CHECK(read(ends[0], token, sizeof token - 1) > 0, "the child's token");
  static_cast<void>(create_segment("posix_shm", 4096));
  static_cast<void>(attach_segment(token, 4096));  // its creator is alive: it was not swept
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  static_cast<void>(attach_segment(token, 4096));
  static_cast<void>(create_segment("posix_shm", 4096));
  PC_CHECK_THROWS(SystemFailure, attach_segment(token, 4096), "swept");
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace pc::test
