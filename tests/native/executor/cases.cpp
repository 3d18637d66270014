#include "cases.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

namespace pc::test {
namespace {

Collective collective_named(const std::string& name) {
  for (uint8_t i = 0; i < static_cast<uint8_t>(Collective::count); ++i)
    if (name == name_of(static_cast<Collective>(i))) return static_cast<Collective>(i);
  throw std::runtime_error("no such collective: " + name);
}

// Names are TOPOLOGY-COLLECTIVE-PLACEMENT-ROOT.
std::string without_placement(const Case& c) {
  const size_t last = c.name.rfind('-');
  const size_t begin = last == std::string::npos || last == 0 ? std::string::npos : c.name.rfind('-', last - 1);
  return begin == std::string::npos ? c.name : c.name.substr(0, begin) + c.name.substr(last);
}

}  // namespace

// A line "case NAME COLLECTIVE SIZE ROOT PLACEMENT", then for each rank a line with the number of words and the words.
std::vector<Case> read_cases(const std::string& path, const std::string& only) {
  std::ifstream file(path);
  std::vector<Case> cases;
  std::string word, collective;
  while (file >> word) {
    Case c;
    int placement = 0;
    if (word != "case" || !(file >> c.name >> collective >> c.size >> c.root >> placement))
      throw std::runtime_error(path + ": malformed after " + (cases.empty() ? "the start" : cases.back().name));
    c.collective = collective_named(collective);
    c.placement = static_cast<uint8_t>(placement);
    for (int32_t r = 0; r < c.size; ++r) {
      size_t length = 0;
      file >> length;
      std::vector<int32_t> table(length);
      for (int32_t& value : table) file >> value;
      c.ranks.push_back(std::make_shared<const Schedule>(std::move(table)));
    }
    cases.push_back(std::move(c));
  }
  for (Case& c : cases) {
    const auto same = [&](const Case& other) {
      return other.placement == 0 && without_placement(other) == without_placement(c);
    };
    const auto staged = std::find_if(cases.begin(), cases.end(), same);
    if (staged != cases.end()) c.staged = staged->ranks;
  }
  std::erase_if(cases, [&](const Case& c) { return c.name.find(only) == std::string::npos; });
  if (cases.empty()) throw std::runtime_error(path + ": no case");
  return cases;
}

Layout layout_for(const Case& c, int64_t longest) {
  const int32_t n = c.size, chunks = c.chunks();
  if (!c.in_blocks()) return Layout::split(std::max<int64_t>(0, chunks * longest - 5), chunks, 16);
  std::vector<int64_t> counts;
  for (int32_t i = 0; i < chunks; ++i) counts.push_back(i % 4 == 1 ? 0 : std::max<int64_t>(0, longest - 3 * i));
  if (c.row().split == Split::pairs) return Layout::matrix(counts, n);
  return Layout::blocks(counts, c.row().packed_input(), c.row().packed_output());
}

}  // namespace pc::test
