// Signals are for the program's threads, not for ours.
#pragma once

#include <signal.h>

namespace pc {

// All signals are blocked on this thread while this exists; threads that are created meanwhile never receive one.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace pc
