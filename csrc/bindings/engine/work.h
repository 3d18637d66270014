// An operation of the engine as held by Python, and how it is created from an item.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "engine/engine.h"

namespace pc {

// The CPU memory of an item's arrays; null if the core does not access it.
struct Arrays {
  const char* input = nullptr;
  char* output = nullptr;
  std::vector<py::object> held;  // views
};

// Python objects must be destroyed with the GIL held: the engine hands over those of completed operations (take_spent).
class Work {
 public:
  Work(std::shared_ptr<engine::Engine> engine, py::object item) : item(std::move(item)), engine_(std::move(engine)) {}

  const std::string& name() const { return pending->name(); }
  bool done() const { return pending->done(); }
  py::object wait(std::optional<double> timeout) const;
  void when_done(py::object callback);
  void flush() const;
  void call_back();

  std::shared_ptr<engine::Pending> pending;
  py::object item, result = py::none(), error = py::none(), on_wait = py::none();
  Arrays arrays;

 private:
  std::shared_ptr<engine::Engine> engine_;
  std::vector<py::object> callbacks_;
};

template <> inline constexpr bool is_bound<Work> = true;

std::shared_ptr<Work> work_of(const std::shared_ptr<void>& kept);

// Blocks, at most `timeout` seconds, until an operation has completed.  `flushed`: it is not held back for fusion anyway.
void await(engine::Engine& engine, const std::shared_ptr<engine::Pending>& pending, std::optional<double> timeout,
           bool flushed);

// Hash of items that are submitted together.  Throws WrongType for a name that is not a str.
uint64_t group_of(const std::vector<py::object>& items);
// Reads an item into an announcement, and checks what can be checked locally, among `size` ranks.  `group`: of
// `together` items.
engine::Announcement read_announcement(const py::object& item, int32_t size, uint64_t group, size_t together,
                                       Arrays& arrays);
// The same, for a rank of a team.
std::shared_ptr<engine::Pending> read_item(const std::shared_ptr<Work>& work, const Team& team, uint64_t group,
                                           size_t together);

// Parts of that, for callers that have read the array themselves.  They throw InvalidArgument or WrongType.
void set_array(engine::Announcement& announcement, const ArrayView& array, std::span<const int64_t> shape);
void check_operator(const engine::Signature& signature);
Operator operator_named(const std::string& name);
int64_t place_of(const Team& team, const char* input, const char* output, int64_t bytes);

}  // namespace pc
