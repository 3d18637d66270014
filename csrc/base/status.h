// The outcomes of a call, and the exception that carries them to Python.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace pc {

// Outcome of running (a part of) a schedule.
enum class Status : int32_t {
  done,     // every step and exit wait has happened
  pending,  // a wait is not satisfied yet and the group does not block
  failed,   // the communicator is poisoned; the abort record has the reason
};

// Why a communicator was poisoned; each kind is one Python exception.  `nested` only refuses a call, without poisoning.
enum class Fault : uint32_t { none = 0, mismatch, timeout, peer_lost, aborted, nested };

// Raised for errors found before a call is entered.
struct InvalidArgument : std::invalid_argument { using std::invalid_argument::invalid_argument; };
struct WrongType : std::runtime_error { using std::runtime_error::runtime_error; };
struct SystemFailure : std::runtime_error { using std::runtime_error::runtime_error; };

// A poisoned communicator.  `culprit`: the rank that is missing, lost or disagrees; -1: none.
struct CommunicatorFault : std::runtime_error {
  CommunicatorFault(Fault kind, int32_t rank, const std::string& text)
      : std::runtime_error(text), fault(kind), culprit(rank) {}
  Fault fault;
  int32_t culprit;
};

}  // namespace pc
