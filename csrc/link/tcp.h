// A link over a connected TCP socket.
#pragma once

#include <deque>
#include <memory>

#include "link/link.h"

namespace pc {

class TcpLink final : public Link {
 public:
  // Owns `descriptor`, a connected and authenticated socket.  Throws SystemFailure.
  // `receives`: another link of this process, on the same connection, does not.
  explicit TcpLink(int descriptor, bool receives = true);
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;

  uint64_t send(const MessageHeader& header, const void* data, bool more = false) override;
  uint64_t sent() const override { return sent_; }
  bool sends() const override { return !waiting_.empty(); }
  bool progress(Inbox& inbox) override;
  bool closed() const override { return closed_; }
  int error() const override { return error_; }
  int timeouts() const override;
  bool stalled() const { return has_header_ && into_ == nullptr; }  // the next message has no place yet
  int descriptor() const override { return descriptor_; }
  short events(bool receives) const override;

 private:
  struct Outgoing {
    MessageHeader header;
    const char* data;
    uint64_t done;  // bytes of header and data that the kernel has taken
  };
  ssize_t write();
  bool take(size_t bytes);
  bool write_all();
  bool receive(Inbox& inbox);
  bool unpack(Inbox& inbox);
  bool read(bool& drained);
  void close(int error);

  static constexpr size_t kTogether = 16;          // messages, at most, that one system call sends
  static constexpr uint64_t kFewBytes = 64 << 10;  // to which another message is added
  static constexpr size_t kBuffer = 16 << 10;  // bytes: headers and small messages are received through it

  int descriptor_;
  bool receives_;
  bool closed_ = false;
  int error_ = 0;
  int send_error_ = 0;  // what the peer sent before it closed can still be received
  uint64_t posted_ = 0, sent_ = 0;
  std::deque<Outgoing> waiting_;
  bool held_ = false;  // none of these has been offered to the kernel: another one follows

  std::unique_ptr<char[]> buffer_ = std::make_unique<char[]>(kBuffer);
  size_t begin_ = 0, end_ = 0;  // the part of the buffer that has not been unpacked
  MessageHeader header_{};
  bool has_header_ = false;
  char* into_ = nullptr;  // the message's memory, if that is known
  uint64_t filled_ = 0;   // bytes of it
};

}  // namespace pc
