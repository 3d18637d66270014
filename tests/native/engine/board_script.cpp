// A board driven by standard input, which writes its decisions: for tests/native/engine/test_carriers.py.
//   world SIZE THRESHOLD WORLD_RANK...   starts again
//   announce RANK ANNOUNCEMENT...        what a rank submits together, in hexadecimal digits
//   cut                                  the complete operations, in batches: a line of JSON
#include <iostream>
#include <map>
#include <sstream>

#include "boards.h"
#include "executor/control.h"

namespace pc::test {
namespace {

using namespace boards;

std::string bytes_of(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

template <class Numbers>
std::string list_of(const Numbers& numbers) {
  std::string text;
  for (const auto number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

class Script {
 public:
  void begin(std::istream& words) {
    int32_t size = 0, number = 0;
    int64_t threshold = 0;
    words >> size >> threshold;
    std::vector<int32_t> numbers;
    while (words >> number) numbers.push_back(number);
    world_ = std::make_unique<World>(size, threshold);
    names_.clear();
    for (auto& board : world_->boards)
      board->label = [numbers](int32_t rank) {
        return "rank " + rank_number(rank, numbers[static_cast<size_t>(rank)]);
      };
  }

  void announce(std::istream& words) {
    size_t rank = 0;
    words >> rank;
    std::vector<Announcement> unit;
    for (std::string digits; words >> digits;) unit.push_back(engine::decode(bytes_of(digits)));
    boards::announce((*world_)[rank], unit);
    for (const Announcement& a : unit) names_[a.hash.words[0]] = a.name;
  }

  std::string cut() {
    std::string text;
    for (;;) {
      (*world_)[0].cut(true);
      if (!(*world_)[0].has_batch()) return "[" + text + "]";
      std::string agreed;
      for (auto& board : world_->boards) {
        const std::string batch = describe(board->fetch());
        PC_CHECK(agreed.empty() || agreed == batch, "ranks got different batches: ", agreed, " and ", batch);
        agreed = batch;
      }
      text += (text.empty() ? "" : ", ") + agreed;
    }
  }

 private:
  std::string describe(const std::vector<Member>& batch) const {
    std::string text;
    for (const Member& member : batch) {
      text += (text.empty() ? "[\"" : ", [\"") + names_.at(member.hash.words[0]) + "\"";
      if (member.details) {
        text += ", \"" + member.details->difference + "\", " + list_of(member.details->absent) + ", " +
                list_of(member.details->rows);
        if (member.details->signature.kind == Kind::join) text += ", " + std::to_string(member.details->last);
      }
      text += "]";
    }
    return "[" + text + "]";
  }

  std::unique_ptr<World> world_;
  std::map<uint64_t, std::string> names_;  // by hash
};

}  // namespace
}  // namespace pc::test

PC_TEST(script) {
  pc::test::Script script;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "world") script.begin(words);
    else if (command == "announce") script.announce(words);
    else std::cout << script.cut() << std::endl;
  }
}
