// Threads of the library's own, in the background.
#pragma once

#include <sys/prctl.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/signals.h"
#include "base/status.h"

namespace pc {

// Starts a detached thread that never receives a signal.  `name`: at most 15 characters.  Throws SystemFailure if the
// system refuses another thread, before which nothing may depend on it.
template <class Body>
void start_thread(const char* name, Body body) {
  const WithoutSignals masked;
  try {
    std::thread([name, body = std::move(body)]() mutable {
      prctl(PR_SET_NAME, name);
      body();
    }).detach();
  } catch (const std::system_error& error) {
    throw SystemFailure(std::string("the background thread ") + name + " cannot be started: " + error.what());
  }
}

}  // namespace pc
