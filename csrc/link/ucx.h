// A link over UCX: RDMA, several rails, or TCP and shared memory.
//
// Messages are UCP's active messages.  Small and large ones may overtake each other, so that each has a number.  A
// large one is announced first, and its content received in its place without a copy.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "link/link.h"
#include "link/ucx_library.h"

namespace pc {

// UCX accepts messages from anyone: what does not begin with the secret of its pair and direction is dropped.
using UcxSecret = std::array<unsigned char, 16>;

class UcxWorker;

class UcxLink final : public Link {
 public:
  // See UcxWorker::connect.
  UcxLink(UcxWorker& worker, int32_t rank, const std::string& address, const UcxSecret& sends,
          const UcxSecret& expects);
  UcxLink(const UcxLink&) = delete;

  uint64_t send(const MessageHeader& header, const void* data, bool more = false) override;
  uint64_t sent() const override { return sent_; }
  bool sends() const override { return !waiting_.empty(); }
  bool progress(Inbox& inbox) override;
  bool closed() const override { return closed_; }
  int error() const override { return error_; }
  int timeouts() const override { return 0; }  // UCX does not report them
  int descriptor() const override;
  short events(bool receives) const override;
  bool arm() override;
  void abandon() override;

  // For the worker: passes on what has arrived, as far as it has a place.
  bool deliver();
  // Without an inbox, messages are kept.
  void detach() { inbox_ = nullptr; }
  ucx::Request close();

 private:
  struct Wire {
    UcxSecret secret;
    uint64_t number;
    MessageHeader header;
  };
  struct Outgoing {
    Wire wire;
    UcxLink* link;
    uint64_t eager_before;  // see kMostEager
    bool rendezvous, done;
  };
  struct Incoming {
    MessageHeader header;
    UcxLink* link;
    void* held;              // UCX's: the content, or what stands for it
    std::vector<char> copy;  // the content, where UCX keeps none
    bool rendezvous, done;
  };

  static ucx::Status on_arrival(void* link, const void* header, size_t header_length, void* data, size_t length,
                                const ucx::ArrivalParams* params);
  static void on_sent(void* request, ucx::Status status, void* message);
  static void on_received(void* request, ucx::Status status, size_t length, void* message);
  static void on_error(void* link, ucx::Endpoint endpoint, ucx::Status status);

  ucx::Status arrive(const Wire& wire, void* data, size_t length, uint64_t flags);
  bool take(const Wire& wire, const void* data);
  bool may_place(const Incoming& message) const;
  void place(Incoming& message, char* into);
  bool report();
  void completed(Outgoing& message, ucx::Request request);
  void retire();
  void fail(ucx::Status status);
  void fail(int error);

  UcxWorker& worker_;
  const unsigned id_;  // of the peer's messages at this worker
  const UcxSecret sends_, expects_;
  ucx::Endpoint endpoint_ = nullptr;
  Inbox* inbox_ = nullptr;
  bool closed_ = false, stalled_ = false;  // stalled: the next message has no place yet
  int error_ = 0;

  uint64_t numbered_ = 0, posted_ = 0, sent_ = 0;
  uint64_t eager_ = 0, confirmed_ = 0;
  std::deque<Outgoing> waiting_;

  uint64_t next_ = 0;  // the first message that has no place yet
  std::map<uint64_t, Incoming> arrived_;  // by number: from the first one whose arrival has not been reported

  friend class UcxWorker;
};

// The links of one rank of a communicator.  Any one's progress is that of all.
class UcxWorker {
 public:
  // `shared_memory`: what the devices are.  UCX then neither notices that a peer has gone, which the caller must, nor
  // closes a link at once.  Throws SystemFailure.
  UcxWorker(std::shared_ptr<const ucx::Devices> devices, int32_t rank, bool shared_memory = false);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;

  std::string address() const;
  // A link to another rank.  `address`: of its worker, from a connection on which both have proved who they are, as the
  // two secrets.  Throws SystemFailure.
  void connect(int32_t rank, const std::string& address, const UcxSecret& sends, const UcxSecret& expects);
  // Exchanges messages with all, twice: afterwards no rank needs another's progress to send.  For a limited time; the
  // ranks that have not answered.
  std::vector<int32_t> synchronize(double seconds);
  // Shares the worker.
  static std::shared_ptr<Link> link(const std::shared_ptr<UcxWorker>& worker, int32_t rank);
  // Closes all links at once, without waiting for peers: afterwards nothing is read from or written to their memory.
  void close();

 private:
  friend class UcxLink;
  struct Greeting final : Inbox {
    int count = 0;
    char nothing = 0;
    char* place(const MessageHeader& header) override;
    void arrived(const MessageHeader&) override { ++count; }
  };
  struct Peer {
    std::unique_ptr<UcxLink> link;
    Greeting greeting;
  };
  bool progress();
  std::vector<int32_t> exchange_greetings();

  std::shared_ptr<const ucx::Devices> devices_;
  const ucx::Library& ucx_;
  const int32_t rank_;
  const bool shared_memory_;
  const uint32_t generation_;
  ucx::Worker worker_ = nullptr;
  int descriptor_ = -1;
  bool closing_ = false, abandoned_ = false;
  std::map<int32_t, Peer> peers_;
  std::vector<UcxLink*> ready_;  // whose messages can be passed on
  int greetings_ = 0;
};

}  // namespace pc
