// The TCP link over socket pairs: any split of the byte stream, places that become known late, and ends of the
// connection at every byte; and control links between two threads.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "executor/cpu/hosts/control_links.h"
#include "link/tcp.h"

namespace pc {
namespace {

using Random = std::mt19937;

uint64_t below(Random& random, uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random); }

std::pair<int, int> sockets() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair");
  const int bytes = 5000;  // so that most messages are sent in several parts
  for (const int end : ends) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  return {ends[0], ends[1]};
}

MessageHeader header(uint64_t number, uint64_t bytes) { return {number, 7, 9, 11, bytes, MessageKind::data, 0}; }

std::string content(uint64_t number, uint64_t bytes) {
  std::string text(bytes, '\0');
  for (uint64_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(number * 31 + i * 7 + i / 251);
  return text;
}

// The bytes that a link sends for messages of these sizes.
std::string stream(const std::vector<uint64_t>& sizes) {
  std::string bytes;
  for (uint64_t i = 0; i < sizes.size(); ++i) {
    const MessageHeader head = header(i, sizes[i]);
    bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
    bytes += content(i, sizes[i]);
  }
  return bytes;
}

// Gives each message exactly its memory, but only at one of so many questions.
class Box final : public Inbox {
 public:
  Box(Random& random, uint64_t patience) : random_(random), patience_(patience) {}

  char* place(const MessageHeader& head) override {
    if (below(random_, patience_) != 0) return nullptr;
    PC_CHECK(head.value == arrived_count, "messages arrive in order", head.value, arrived_count);
    memory_ = std::make_unique<char[]>(head.bytes + 1);
    return memory_.get();
  }
  void arrived(const MessageHeader& head) override {
    const std::string expected = content(head.value, head.bytes);
    PC_CHECK(memcmp(memory_.get(), expected.data(), expected.size()) == 0, "the content", head.value, head.bytes);
    ++arrived_count;
  }
  uint64_t arrived_count = 0;

 private:
  Random& random_;
  uint64_t patience_;
  std::unique_ptr<char[]> memory_;
};

std::vector<uint64_t> random_sizes(Random& random, uint64_t count) {
  std::vector<uint64_t> sizes(count);
  const uint64_t limits[] = {1, 100, 5000, 20'000, 70'000};
  for (uint64_t& size : sizes) size = below(random, limits[below(random, 5)]);
  return sizes;
}

PC_TEST(link_receives_any_split) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const auto sizes = random_sizes(random, 1 + below(random, 40));
    const std::string bytes = stream(sizes);
    const auto [ours, theirs] = sockets();
    TcpLink link(ours);
    Box box(random, 1 + seed % 4);
    const uint64_t most = seed % 2 == 0 ? 90 : 30'000;
    for (size_t at = 0; at < bytes.size();) {
      const size_t part = std::min<size_t>(bytes.size() - at, 1 + below(random, most));
      const ssize_t wrote = ::send(theirs, bytes.data() + at, part, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (wrote > 0) at += static_cast<size_t>(wrote);
      for (uint64_t turns = below(random, 4) + (wrote < 0 ? 1 : 0); turns > 0; --turns) link.progress(box);
    }
    for (int turns = 0; box.arrived_count < sizes.size() && turns < 100'000; ++turns) link.progress(box);
    PC_CHECK(box.arrived_count == sizes.size(), "all arrive", seed, box.arrived_count, sizes.size());
    PC_CHECK(!link.closed() && !link.stalled(), "and nothing else does", seed);
    ::close(theirs);
  }
}

PC_TEST(link_both_ways_at_once) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    Random random(seed);
    const auto [first, second] = sockets();
    TcpLink links[] = {TcpLink(first), TcpLink(second)};
    Box boxes[] = {Box(random, 2), Box(random, 3)};
    const std::vector<uint64_t> sizes[] = {random_sizes(random, 50), random_sizes(random, 50)};
    std::map<uint64_t, std::string> held[2];  // by the number that send() returned
    uint64_t next[2] = {0, 0};
    for (int turns = 0; turns < 200'000 && boxes[0].arrived_count + boxes[1].arrived_count < 100; ++turns) {
      const uint64_t side = below(random, 2);
      for (uint64_t left = below(random, 3) == 0 ? 1 + below(random, 25) : 0; left > 0 && next[side] < 50; --left) {
        const uint64_t number = next[side]++, bytes = sizes[side][number];
        std::string& data = held[side][number + 1] = content(number, bytes);
        const uint64_t counted = links[side].send(header(number, bytes), data.data(), left > 1 && next[side] < 50);
        PC_CHECK(counted == number + 1, "messages are counted", number);
      }
      links[side].progress(boxes[side]);
      while (!held[side].empty() && held[side].begin()->first <= links[side].sent())
        held[side].erase(held[side].begin());  // the memory may be changed: under a sanitizer it is gone
    }
    for (const int side : {0, 1}) {
      PC_CHECK(boxes[side].arrived_count == 50, "all arrive", seed, side, boxes[side].arrived_count);
      PC_CHECK(!links[side].sends() && links[side].sent() == 50, "all were sent", seed, side);
    }
  }
}

PC_TEST(link_ends_at_every_byte) {
  const std::vector<uint64_t> sizes{0, 5, 300, 1};
  const std::string bytes = stream(sizes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    uint64_t complete = 0;
    for (size_t end = 0; complete < sizes.size() && (end += sizeof(MessageHeader) + sizes[complete]) <= cut;)
      ++complete;
    Random random(static_cast<unsigned>(cut));
    const auto [ours, theirs] = sockets();
    TcpLink link(ours);
    Box box(random, 1 + cut % 3);
    PC_CHECK(::send(theirs, bytes.data(), cut, 0) == static_cast<ssize_t>(cut), "sent", cut);
    ::close(theirs);
    for (int turns = 0; turns < 1000; ++turns) link.progress(box);
    PC_CHECK(box.arrived_count == complete, "the complete messages arrive", cut, box.arrived_count, complete);
    PC_CHECK(link.closed() && link.error() == 0, "the end is noticed", cut, link.error());
  }
}

PC_TEST(link_sends_to_a_closed_end) {
  for (const bool receives : {true, false}) {
    Random random(1);
    const auto [ours, theirs] = sockets();
    TcpLink link(ours, receives);
    const std::string bytes = stream({3}), data(200'000, 'x');
    PC_CHECK(::send(theirs, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "sent");
    ::close(theirs);
    link.send(header(0, data.size()), data.data());
    Box box(random, 1);
    for (int turns = 0; turns < 10; ++turns) link.progress(box);
    PC_CHECK(link.closed() && link.error() != 0 && link.sent() == 0, "the failure is noticed", link.error());
    PC_CHECK(box.arrived_count == (receives ? 1 : 0), "what was sent before is received", box.arrived_count);
  }
}

// What no rank sends on a control connection: the peer counts as lost, and nothing is written.
PC_TEST(link_invalid_control_messages) {
  const MessageHeader wrong[] = {
      header(0, 4),
      {0, 0, 0, 0, 1ull << 40, MessageKind::abort, 0},
      {99, 0, 0, 0, 4, MessageKind::abort, 0},
      {0, 0, 0, 0, 0, static_cast<MessageKind>(77), 0},
  };
  for (const MessageHeader& each : wrong) {
    const auto [ours, theirs] = sockets();
    ControlLinks links;
    links.add(1, std::make_unique<TcpLink>(ours));
    PC_CHECK(::send(theirs, &each, sizeof each, 0) == sizeof each, "sent");
    PC_CHECK(!links.receive() && links.lost(1), "the peer is lost", static_cast<uint32_t>(each.kind));
    PC_CHECK(links.reason(1) == "it sent an invalid message", links.reason(1));
    ::close(theirs);
  }
}

// A thread sends heartbeats while another one asks and aborts, as in a process.
PC_TEST(link_control_links_of_two_threads) {
  using std::chrono::steady_clock;
  const auto [ours, theirs] = sockets();
  ControlLinks here, there;
  here.add(1, std::make_unique<TcpLink>(ours));
  there.add(0, std::make_unique<TcpLink>(theirs));
  here.set_hosts({"0", "1"}, {"a", "b"});
  there.set_hosts({"0", "1"}, {"a", "b"});
  const auto beat = [](ControlLinks& links) {
    for (int i = 0; i < 500; ++i) {
      ControlLinks::Heard heard;
      links.beat(steady_clock::now(), false, heard);
      links.judge(steady_clock::now(), heard);
    }
  };
  std::thread first([&] { beat(here); }), second([&] { beat(there); });
  for (int i = 0; i < 200; ++i) PC_CHECK(!here.receive() && !here.lost(1) && !here.departed(1), "nothing happened", i);
  there.send_abort({Fault::timeout, 1, "text", 3, 7});
  std::optional<Abort> abort;
  for (int i = 0; i < 1'000'000 && !abort; ++i) {
    static_cast<void>(there.receive());  // continues to send, if the heartbeats have filled the socket
    abort = here.receive();
  }
  first.join();
  second.join();
  PC_CHECK(abort && abort->fault == Fault::timeout && abort->culprit == 1 && abort->text == "text", "the record");
  PC_CHECK(abort && abort->channel == 3 && abort->call == 7, "the call that is given up");
}

}  // namespace
}  // namespace pc
