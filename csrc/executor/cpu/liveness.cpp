#include "executor/cpu/liveness.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/forks.h"
#include "base/status.h"

namespace pc {
namespace {

// Contents of /proc/PID/stat.
struct ProcStat {
  int32_t pid = 0;
  char state = '?';
  long threads = 0;
  uint64_t started = 0;
};

enum class Read { ok, no_process, unreadable };

// The second field is the program's name, in parentheses and of arbitrary characters: the other fields are counted from
// the last parenthesis.
bool parse(const char* text, ProcStat& stat) {
  const char* name_ends = std::strrchr(text, ')');
  unsigned long long started = 0;
  if (name_ends == nullptr || std::sscanf(text, "%d", &stat.pid) != 1) return false;
  const int found =
      std::sscanf(name_ends + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu",
                  &stat.state, &stat.threads, &started);
  stat.started = started;
  return found == 3;
}

Read read_stat(const char* path, ProcStat& stat) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT || errno == ESRCH ? Read::no_process : Read::unreadable;
  char text[1024];  // holds all fields, about fifty numbers
  const ssize_t length = ::read(file, text, sizeof text - 1);
  const int error = errno;
  close(file);
  if (length < 0) return error == ESRCH ? Read::no_process : Read::unreadable;
  text[length] = '\0';
  return parse(text, stat) ? Read::ok : Read::unreadable;
}

// Nothing if /proc is not mounted, or shows another namespace's processes.
std::optional<ProcStat> own_stat() {
  ProcStat own;
  if (read_stat("/proc/self/stat", own) != Read::ok || own.pid != getpid()) return std::nullopt;
  return own;
}

Read read_stat(const Process& process, ProcStat& stat) {
  return read_stat(("/proc/" + std::to_string(process.pid) + "/stat").c_str(), stat);
}

// Whether it has ended, by /proc. If only the main thread has ended, the process shows as a zombie, too.
bool ended(const Process& process) {
  ProcStat stat;
  switch (read_stat(process, stat)) {
    case Read::no_process: return true;
    case Read::unreadable: return false;
    default: break;
  }
  if (process.started != 0 && stat.started != process.started) return true;  // its id was reused
  return (stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1;
}

}  // namespace

uint64_t pid_namespace() {
  struct stat about{};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

uint64_t own_start_time() {
  const auto own = own_stat();
  return own ? own->started : 0;
}

// Watches one process.
class Watch {
 public:
  enum class Way { none, pidfd, proc, number };  // none: it ended before it could be watched

  Watch(Process process, Way way, int descriptor) : process_(process), way_(way), descriptor_(descriptor) {}
  ~Watch() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Watch(const Watch&) = delete;
  bool gone() const {
    switch (way_) {
      case Way::none: return true;
      case Way::proc: return ended(process_);
      case Way::number: return kill(process_.pid, 0) != 0 && errno == ESRCH;  // cannot detect zombies or a reused id
      default: break;
    }
    pollfd query{descriptor_, POLLIN, 0};  // readable when its last thread has ended
    return poll(&query, 1, 0) == 1 && (query.revents & POLLIN) != 0;
  }
  bool stopped() const {
    ProcStat stat;
    return read_stat(process_, stat) == Read::ok && (stat.state == 'T' || stat.state == 't');
  }

 private:
  Process process_;
  Way way_;
  int descriptor_;
};

namespace {

// Shared, so that hundreds of communicators of the same ranks need no more descriptors than one.
struct Watches {
  std::mutex mutex;
  std::map<std::pair<int32_t, uint64_t>, std::weak_ptr<const Watch>> of;
};

std::shared_ptr<const Watch> start_watch(const Process& process) {
  const bool shown = own_stat().has_value();
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (descriptor < 0 && (errno == EMFILE || errno == ENFILE))
    throw SystemFailure("cannot watch process " + std::to_string(process.pid) + ": " + std::strerror(errno));
  if (descriptor < 0 && errno == ESRCH) return std::make_shared<const Watch>(process, Watch::Way::none, -1);
  if (descriptor < 0) return std::make_shared<const Watch>(process, shown ? Watch::Way::proc : Watch::Way::number, -1);
  auto made = std::make_shared<const Watch>(process, Watch::Way::pidfd, descriptor);
  // The id may have been reused before the descriptor was opened; from now on it cannot be.
  if (shown && ended(process)) return std::make_shared<const Watch>(process, Watch::Way::none, -1);
  return made;
}

std::shared_ptr<const Watch> watch(const Process& process) {
  Watches& watches = of_this_process<Watches>();
  const std::lock_guard lock(watches.mutex);
  auto& kept = watches.of[{process.pid, process.started}];
  auto known = kept.lock();
  if (known && (process.started != 0 || !known->gone())) return known;  // else the id may have been reused
  known = start_watch(process);
  kept = known;
  return known;
}

}  // namespace

Liveness::Liveness(const std::vector<Process>& processes) {
  for (const Process& process : processes) watches_.push_back(process.pid > 0 ? watch(process) : nullptr);
}

bool Liveness::gone(int32_t rank) const {
  const auto& watch = watches_[static_cast<size_t>(rank)];
  return watch && watch->gone();
}

bool Liveness::stopped(int32_t rank) const {
  const auto& watch = watches_[static_cast<size_t>(rank)];
  return watch && watch->stopped();
}

}  // namespace pc
