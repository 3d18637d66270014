#include "executor/control.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <thread>

#include "base/digest.h"

namespace pc {
namespace {

const char* describe_placement(uint8_t placement) {
  switch (placement) {
    case 0: return "plain arrays";
    case input_shared: return "input in a window";
    case output_shared: return "output in a window";
    case input_shared | output_shared: return "windows";
    default: return "windows, in place";
  }
}

// "2 x 6": 6 elements of each of 2 ranks, where a call that moves parts of the same size would else show 12.
std::string count_text(const Fingerprint& print, int32_t ranks) {
  const Traits& t = traits(print.collective);
  const int64_t chunks = t.split == Split::pairs ? int64_t{ranks} * ranks : ranks;
  const bool even = t.in_blocks() && !t.reduces && print.count % chunks == 0 &&
                    print.blocks == digest_of(std::vector<int64_t>(chunks, print.count / chunks));
  return even ? std::to_string(ranks) + " x " + std::to_string(print.count / ranks) : std::to_string(print.count);
}

}  // namespace

uint64_t digest_of(const std::vector<int64_t>& counts) {
  Digest digest;
  digest.add(static_cast<uint64_t>(counts.size()));
  for (const int64_t count : counts) digest.add(static_cast<uint64_t>(count));
  return digest.value();
}

uint64_t Fingerprint::digest() const {
  const uint64_t small = static_cast<uint64_t>(collective) | static_cast<uint64_t>(op) << 8 |
                         static_cast<uint64_t>(dtype) << 16 | static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
  return Digest()
      .add(static_cast<uint64_t>(count))
      .add(small)
      .add(blocks)
      .add(program)
      .add(code)
      .add(purpose)
      .add(prescale)
      .add(postscale)
      .value();
}

std::string Fingerprint::describe(int32_t rank, int32_t ranks, int64_t step) const {
  const Traits& t = traits(collective);
  std::string text = t.is_message() && rank == 1 ? t.received_as : t.name;
  text += "(count=" + count_text(*this, ranks) + ", dtype=" + name_of(dtype);
  if (t.reduces) text += std::string(", op=") + operation;
  text += factor_text("prescale", prescale) + factor_text("postscale", postscale);
  if (root >= 0) text += ", root=" + std::to_string(root);
  if (t.weighted) text += ", step=" + std::to_string(step);
  if (!t.is_message()) text += std::string(", topology=") + topology + ", " + describe_placement(placement);
  if (*note != '\0') text += std::string(", ") + note;
  return text + ")";
}

std::string rank_number(int32_t rank, int32_t world) {
  const std::string text = std::to_string(rank);
  return world == rank ? text : text + " (world rank " + std::to_string(world) + ")";
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string factor_text(const char* name, double value) {
  return value == 1.0 ? "" : std::string(", ") + name + "=" + number_text(value);
}

std::string Fingerprint::hidden_difference(const Fingerprint& other) const {
  std::string text;
  const auto differs = [&text](const char* what, uint64_t mine, uint64_t theirs) {
    if (mine != theirs) text += (text.empty() ? "" : ", ") + std::string(what);
  };
  differs("the block counts", blocks, other.blocks);
  differs("the topology's parameters or program", program, other.program);
  differs("the operator's code, or what it reads", code, other.code);
  differs("the purpose of the call", purpose, other.purpose);
  return text;
}

void RankBlock::wake() { syscall(SYS_futex, futex(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool Control::poison(int32_t writer, const Abort& why) const {
  uint32_t sound = 0;
  if (!header->abort.compare_exchange_strong(sound, 1 + static_cast<uint32_t>(writer))) return false;
  header->fault = why.fault;
  header->culprit = why.culprit;
  header->channel = why.channel;
  header->call = why.call;
  const size_t length = std::min(why.text.size(), sizeof header->text - 1);
  why.text.copy(header->text, length);
  header->text[length] = '\0';
  header->abort.store(kPoisoned, std::memory_order_release);
  for (RankBlock* block : blocks) block->wake();
  return true;
}

void Control::raise(bool already_raised, const std::function<bool(int32_t)>& gone) const {
  // The writer is done within a few instructions, unless it ended or was stopped there.
  uint32_t state = header->abort.load(std::memory_order_acquire);
  for (int i = 0; i < 1000 && state != kPoisoned && !gone(static_cast<int32_t>(state - 1)); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    state = header->abort.load(std::memory_order_acquire);
  }
  if (state == kPoisoned) {
    const std::string text = header->text;
    throw CommunicatorFault(header->fault, header->culprit,
                            already_raised ? "the communicator was given up: " + text : text);
  }
  const auto writer = static_cast<int32_t>(state - 1);
  const std::string text = "rank " + std::to_string(writer) + " gave the communicator up and ";
  if (gone(writer))
    throw CommunicatorFault(Fault::peer_lost, writer,
                            text + "is gone (its process has ended) without giving the reason");
  throw CommunicatorFault(Fault::timeout, writer, text + "did not give the reason within 1 s: its process is stopped");
}

}  // namespace pc
