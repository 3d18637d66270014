// A map of bounded size: what was not asked for the longest makes room.
#pragma once

#include <cstddef>
#include <utility>

namespace pc {

// `Map`: a map from its first argument to its second whose elements stay where they are, such as std::map and
// std::unordered_map.  Not for several threads at a time.
template <class Key, class Value, template <class, class> class Map>
class LruCache {
 public:
  explicit LruCache(size_t most) : most_(most) {}
  LruCache(const LruCache&) = delete;

  // The value, now the latest in use; null where there is none.  It stays until `most - 1` others were used.
  Value* find(const Key& key) {
    if (newest_ != nullptr && newest_->first == key) return &newest_->second.value;  // most often, and without a hash
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    unlink(*found);
    link(*found);
    return &found->second.value;
  }

  // The value takes the place of one that the key had.
  Value& insert(const Key& key, Value value) {
    const auto [at, added] = entries_.try_emplace(key);
    std::swap(at->second.value, value);
    if (!added) unlink(*at);
    link(*at);
    // Destroyed at the end: that of a Python object may come back here.
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
