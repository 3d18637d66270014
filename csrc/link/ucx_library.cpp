#include "link/ucx_library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include "base/forks.h"
#include "base/signals.h"
#include "base/status.h"

namespace pc::ucx {
namespace {

constexpr unsigned kMajor = 1, kOldestMinor = 12;

// UCX reads these when it is loaded, for the whole process.  Without them it handles SIGSEGV and others, and replaces
// functions that map memory in the process's code.
constexpr std::pair<const char*, const char*> kForProcess[] = {
    {"UCX_HANDLE_ERRORS", "none"},
    {"UCX_ERROR_SIGNALS", ""},
    {"UCX_DEBUG_SIGNO", "0"},
    {"UCX_MEM_EVENTS", "no"},
    {"UCX_MEM_MMAP_HOOK_MODE", "none"},
    {"UCX_MEM_MALLOC_HOOKS", "no"},
    {"UCX_MEM_DLOPEN_PROCESS_RPATH", "no"},
    {"UCX_MEM_CUDA_HOOK_MODE", "none"},
    {"UCX_MEMTYPE_CACHE", "no"},
    {"UCX_LOG_LEVEL", "fatal"},
    {"UCX_WARN_UNUSED_ENV_VARS", "no"},
    {"UCX_VFS_ENABLE", "no"},
};

// Sets them, except those that the user has set, and removes them in the end.
class Environment {
 public:
  Environment() {
    for (const auto& [name, value] : kForProcess)
      if (getenv(name) == nullptr && setenv(name, value, 0) == 0) set_.push_back(name);
  }
  ~Environment() {
    for (const char* name : set_) unsetenv(name);
  }
  Environment(const Environment&) = delete;

 private:
  std::vector<const char*> set_;
};

struct Opened {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Library>> libraries;
  std::map<std::pair<std::string, Options>, std::shared_ptr<const Devices>> devices;
};

}  // namespace

Library::Library(const std::string& file) {
  const Environment environment;
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw SystemFailure(std::string("cannot load UCX: ") + dlerror());
  const auto read_version =
      reinterpret_cast<void (*)(unsigned*, unsigned*, unsigned*)>(dlsym(library, "ucp_get_version"));
  if (read_version == nullptr) throw SystemFailure(file + " is not UCX: it has no ucp_get_version");
  Dl_info place{};
  path_ = dladdr(reinterpret_cast<void*>(read_version), &place) != 0 ? place.dli_fname : file;
  read_version(&major_, &minor_, &release_);
  if (major_ != kMajor || minor_ < kOldestMinor)
    throw SystemFailure(path_ + " is UCX " + version() + "; " + std::to_string(kMajor) + "." +
                        std::to_string(kOldestMinor) + " or a newer " + std::to_string(kMajor) + ".x is needed");
#define PC_LOAD(member, name, result, parameters)                         \
  member = reinterpret_cast<result(*) parameters>(dlsym(library, #name)); \
  if (member == nullptr) throw SystemFailure(path_ + " (UCX " + version() + ") lacks " #name);
  PC_UCX_FUNCTIONS(PC_LOAD)
#undef PC_LOAD
}

std::string Library::version() const {
  return std::to_string(major_) + "." + std::to_string(minor_) + "." + std::to_string(release_);
}

void Library::check(Status status, const char* what) const {
  if (status < 0) throw SystemFailure("UCX " + version() + ": " + what + ": " + describe(status));
}

std::shared_ptr<const Devices> Devices::open(const std::string& file, const Options& options) {
  auto& opened = of_this_process<Opened>();
  const std::lock_guard lock(opened.mutex);
  auto& library = opened.libraries[file];
  if (library == nullptr) library = std::make_shared<const Library>(file);
  auto& devices = opened.devices[{file, options}];
  if (devices == nullptr) devices = std::make_shared<const Devices>(library, options);
  return devices;
}

Devices::Devices(std::shared_ptr<const Library> library, const Options& options) : library_(std::move(library)) {
  const WithoutSignals masked;
  Config config = nullptr;
  library_->check(library_->read_config(nullptr, nullptr, &config), "ucp_config_read");
  ContextParams params{};
  params.fields = kContextFeatures | kContextWorkersInThreads;
  params.features = kFeatureMessages | kFeatureWakeup;
  params.workers_in_threads = 1;
  Status status = kOk;
  for (const auto& [name, value] : options)
    if (status >= 0) status = library_->modify_config(config, name.c_str(), value.c_str());
  if (status >= 0) status = library_->init(library_->major(), library_->minor(), &params, config, &context_);
  library_->release_config(config);
  library_->check(status, "ucp_init");
}

// UCP has no call for it but the printed description, whose lines contain "-- TRANSPORT/DEVICE".
std::vector<std::string> Devices::transports() const {
  char* text = nullptr;
  size_t length = 0;
  FILE* const file = open_memstream(&text, &length);
  if (file == nullptr) throw SystemFailure("no memory for the description of UCX's transports");
  library_->print_context(context_, file);
  fclose(file);
  std::istringstream words(std::string(text, length));
  free(text);
  std::vector<std::string> found;
  std::string before, word;
  while (words >> word) {
    const bool is_new = std::find(found.begin(), found.end(), word) == found.end();
    if (before == "--" && word.find('/') != std::string::npos && is_new) found.push_back(word);
    before = word;
  }
  return found;
}

}  // namespace pc::ucx
