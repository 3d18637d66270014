// A link: ordered messages between two ranks on different hosts.
//
// Nothing here blocks, and nothing runs in the background: messages move when a rank sends or calls progress().  One
// thread at a time uses a link.
#pragma once

#include <cstdint>

namespace pc {

enum class MessageKind : uint32_t {
  data,      // what a step sends
  announce,  // a fingerprint: of the calls of the following messages, or with a `call` of this one
  abort,     // the sender has given the communicator up; with the reason
  depart,    // the sender makes no further calls
  heartbeat, // the sender's process runs
  expelled,  // the sender continues in a communicator without the receiver
  count
};

// Precedes each message.  Both hosts have the same byte order: checked when they connect.
struct MessageHeader {
  uint64_t value;     // the sender's counter after the step; of an abort, the fault; see Remote::send_placement
  uint64_t call;      // digest of the sender's call; of an abort, the channel
  uint64_t sequence;  // of the call; of an abort, the first that is given up
  int64_t step;       // of a weighted call, see Operation; of an abort, the culprit
  uint64_t bytes;     // that follow
  MessageKind kind;
  uint32_t unused;
};

// Where a link puts the messages that arrive.
class Inbox {
 public:
  // Memory for the content of the next message; null: not yet, and nothing after it is read.
  virtual char* place(const MessageHeader& header) = 0;
  virtual void arrived(const MessageHeader& header) = 0;

 protected:
  ~Inbox() = default;
};

class Link {
 public:
  virtual ~Link() = default;
  // Sends header.bytes of `data`, after what was sent before.  They must not change until sent() has reached the number
  // returned.  `more`: another message follows at once, and both may travel together.
  virtual uint64_t send(const MessageHeader& header, const void* data, bool more = false) = 0;
  // Number of messages whose memory may be changed, and that arrive without further calls of progress().
  virtual uint64_t sent() const = 0;
  virtual bool sends() const = 0;  // some have not been taken yet
  // Continues to send, and receives what has arrived.  True if anything moved.
  virtual bool progress(Inbox& inbox) = 0;
  virtual bool closed() const = 0;  // by the peer, or by an error of the network
  virtual int error() const = 0;    // errno; 0: the peer closed it
  // How often in a row the oldest part of what was sent has not been acknowledged in time.
  virtual int timeouts() const = 0;
  // What poll() is to wait for, at which descriptor, until a message arrives (if `receives`) or sending can continue.
  virtual int descriptor() const = 0;
  virtual short events(bool receives) const = 0;
  // Called before a poll(); false: something has happened already, continue with progress().
  virtual bool arm() { return true; }
  // Gives up all messages: afterwards the link neither reads their memory nor writes to it.
  virtual void abandon() {}
};

}  // namespace pc
