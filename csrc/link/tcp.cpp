#include "link/tcp.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/status.h"

namespace pc {

TcpLink::TcpLink(int descriptor, bool receives) : descriptor_(descriptor), receives_(receives) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) != 0)
    throw SystemFailure(std::string("a link's socket cannot be used: ") + strerror(errno));
}

TcpLink::~TcpLink() { ::close(descriptor_); }

short TcpLink::events(bool receives) const {
  return static_cast<short>((receives && !stalled() ? POLLIN : 0) | (sends() ? POLLOUT : 0));
}

void TcpLink::close(int error) {
  closed_ = true;
  error_ = send_error_ != 0 ? send_error_ : error;
}

int TcpLink::timeouts() const {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(descriptor_, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;  // not a TCP socket
  return info.tcpi_retransmits;
}

// -- sending --------------------------------------------------------------------------------------------------------

uint64_t TcpLink::send(const MessageHeader& header, const void* data, bool more) {
  const bool first = waiting_.empty() || held_;
  waiting_.push_back({header, static_cast<const char*>(data), 0});
  held_ = first && more;
  if (first && !more) write_all();
  return ++posted_;
}

bool TcpLink::write_all() {
  bool moved = false;
  held_ = false;
  while (!waiting_.empty() && !closed_ && send_error_ == 0) {
    const ssize_t taken = write();
    if (taken < 0 && errno != EAGAIN && errno != EINTR && (send_error_ = errno, !receives_)) close(send_error_);
    moved = moved || taken > 0;
    if (taken < 0 || !take(static_cast<size_t>(taken))) break;
  }
  return moved;
}

// Offers the rest of the first message, and of those behind it if they are small, to the kernel.
ssize_t TcpLink::write() {
  iovec parts[2 * kTogether];
  size_t count = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < std::min(waiting_.size(), kTogether) && bytes <= kFewBytes; ++i) {
    Outgoing& message = waiting_[i];
    const uint64_t of_header = std::min<uint64_t>(message.done, sizeof(MessageHeader));
    const uint64_t of_data = message.done - of_header;
    if (of_header < sizeof(MessageHeader))
      parts[count++] = {reinterpret_cast<char*>(&message.header) + of_header, sizeof(MessageHeader) - of_header};
    if (of_data < message.header.bytes)
      parts[count++] = {const_cast<char*>(message.data) + of_data, message.header.bytes - of_data};
    bytes += sizeof(MessageHeader) + message.header.bytes - message.done;
  }
  msghdr what{};
  what.msg_iov = parts;
  what.msg_iovlen = count;
  return sendmsg(descriptor_, &what, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Removes what the kernel has taken; false: a part of a message is left.
bool TcpLink::take(size_t bytes) {
  while (bytes > 0) {
    Outgoing& message = waiting_.front();
    const uint64_t left = sizeof(MessageHeader) + message.header.bytes - message.done;
    const uint64_t taken = std::min<uint64_t>(left, bytes);
    message.done += taken;
    bytes -= taken;
    if (taken < left) return false;
    waiting_.pop_front();
    ++sent_;
  }
  return true;
}

// -- receiving ------------------------------------------------------------------------------------------------------

bool TcpLink::progress(Inbox& inbox) {
  if (closed_) return unpack(inbox);
  const bool wrote = write_all();
  return (receives_ && receive(inbox)) || wrote;
}

bool TcpLink::receive(Inbox& inbox) {
  bool moved = false, drained = false;
  for (;;) {
    moved = unpack(inbox) || moved;
    if (closed_ || drained || (has_header_ && into_ == nullptr)) return moved;  // null: its place is not known yet
    if (!read(drained)) return moved;
    moved = true;
  }
}

// Delivers what the buffer holds.
bool TcpLink::unpack(Inbox& inbox) {
  bool moved = false;
  for (;;) {
    if (!has_header_) {
      if (end_ - begin_ < sizeof header_) return moved;
      memcpy(&header_, buffer_.get() + begin_, sizeof header_);
      begin_ += sizeof header_;
      has_header_ = true;
      into_ = nullptr;
      filled_ = 0;
    }
    if (into_ == nullptr && (into_ = inbox.place(header_)) == nullptr) return moved;
    const auto held = std::min<uint64_t>(end_ - begin_, header_.bytes - filled_);
    if (held > 0) memcpy(into_ + filled_, buffer_.get() + begin_, held);
    begin_ += held;
    filled_ += held;
    if (filled_ < header_.bytes) return moved;
    has_header_ = false;
    moved = true;
    inbox.arrived(header_);
  }
}

// Receives the rest of the message in its place and what follows in the buffer; false: there is nothing, or the
// connection is closed.  `drained`: there is no more for now.
bool TcpLink::read(bool& drained) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (begin_ > 0 && end_ == kBuffer) {  // the beginning of a header
    memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const uint64_t missing = has_header_ ? header_.bytes - filled_ : 0;
  const uint64_t room = kBuffer - end_;
  iovec parts[2] = {{into_ + filled_, missing}, {buffer_.get() + end_, room}};
  msghdr what{};
  what.msg_iov = missing > 0 ? parts : parts + 1;
  what.msg_iovlen = missing > 0 ? 2 : 1;
  const ssize_t got = recvmsg(descriptor_, &what, MSG_DONTWAIT);
  if (got < 0) {
    if (errno != EAGAIN && errno != EINTR) close(errno);
    return false;
  }
  if (got == 0) {
    close(0);
    return false;
  }
  const uint64_t direct = std::min<uint64_t>(missing, static_cast<uint64_t>(got));
  filled_ += direct;
  end_ += static_cast<uint64_t>(got) - direct;
  drained = static_cast<uint64_t>(got) < missing + room;
  return true;
}

}  // namespace pc
