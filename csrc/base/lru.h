// A map of bounded size that evicts the least recently used entry.
#pragma once

#include <cstddef>
#include <utility>

namespace pc {

// `Map`: a map from its first argument to its second with stable element addresses, such as std::map and
// std::unordered_map.  Not thread-safe.
template <class Key, class Value, template <class, class> class Map>
class LruCache {
 public:
  explicit LruCache(size_t most) : most_(most) {}
  LruCache(const LruCache&) = delete;

  // The value, marked as most recently used; null if there is none.  It stays until `most - 1` others have been used.
  Value* find(const Key& key) {
    if (newest_ != nullptr && newest_->first == key) return &newest_->second.value;  // most often, and without a hash
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    unlink(*found);
    link(*found);
    return &found->second.value;
  }

  // Replaces the key's value if it has one.
  Value& insert(const Key& key, Value value) {
    const auto [at, added] = entries_.try_emplace(key);
    std::swap(at->second.value, value);
    if (!added) unlink(*at);
    link(*at);
    // Destroyed last: a Python object's destructor may reenter this cache.
    const auto evicted = entries_.size() > most_ ? take_oldest() : typename Entries::node_type();
    return at->second.value;
  }

  size_t size() const { return entries_.size(); }

 private:
  struct Entry;
  using Entries = Map<Key, Entry>;
  using Node = std::pair<const Key, Entry>;
  struct Entry {
    Value value{};
    Node* older = nullptr;
    Node* newer = nullptr;
  };

  typename Entries::node_type take_oldest() {
    Node& oldest = *oldest_;
    unlink(oldest);
    return entries_.extract(oldest.first);
  }
  void unlink(Node& node) {
    const Entry& e = node.second;
    (e.newer != nullptr ? e.newer->second.older : newest_) = e.older;
    (e.older != nullptr ? e.older->second.newer : oldest_) = e.newer;
  }
  void link(Node& node) {
    node.second.older = newest_;
    node.second.newer = nullptr;
    (newest_ != nullptr ? newest_->second.newer : oldest_) = &node;
    newest_ = &node;
  }

  Entries entries_;
  Node* newest_ = nullptr;
  Node* oldest_ = nullptr;
  size_t most_;
};

}  // namespace pc
