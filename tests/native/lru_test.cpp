// The cache of plans: evicts the least recently used entry, and only that.
#include "base/lru.h"

#include <map>
#include <memory>
#include <unordered_map>

#include "check.h"

namespace pc {
namespace {

template <class K, class V> using Ordered = std::map<K, V>;
template <class K, class V> using Hashed = std::unordered_map<K, V>;

template <template <class, class> class Map>
void check_order() {
  LruCache<int, std::shared_ptr<int>, Map> cache(3);
  const auto put = [&](int key) { return cache.insert(key, std::make_shared<int>(key)); };
  std::weak_ptr<int> second;
  put(1);
  second = put(2);
  put(3);
  PC_CHECK(cache.find(1) != nullptr && **cache.find(1) == 1, "the oldest is found, and becomes the newest");
  put(4);
  PC_CHECK(cache.find(2) == nullptr && second.expired(), "the least recently used has made room and is destroyed");
  PC_CHECK(cache.find(1) != nullptr && cache.find(3) != nullptr && cache.find(4) != nullptr, "the others stay");
  PC_CHECK(cache.size() == 3, "no more than the limit", cache.size());
  for (const int key : {3, 1, 3, 3, 4}) PC_CHECK(**cache.find(key) == key, "any order of use", key);
  put(5);
  put(6);
  PC_CHECK(cache.find(1) == nullptr && cache.find(3) == nullptr && cache.find(4) != nullptr, "in the order of use");
  cache.insert(5, std::make_shared<int>(50));
  PC_CHECK(cache.size() == 3 && **cache.find(5) == 50, "an existing key gets the new value");
  put(7);
  PC_CHECK(cache.find(6) == nullptr && cache.find(4) != nullptr && cache.find(5) != nullptr, "and is the newest");
}

PC_TEST(lru_hashed) { check_order<Hashed>(); }
PC_TEST(lru_ordered) { check_order<Ordered>(); }

PC_TEST(lru_of_one) {
  LruCache<int, int, Hashed> cache(1);
  for (int i = 0; i < 5; ++i) {
    cache.insert(i, i);
    PC_CHECK(cache.size() == 1 && *cache.find(i) == i && cache.find(i - 1) == nullptr, "each makes room for the next",
             i);
  }
}

}  // namespace
}  // namespace pc
