// An operation of the engine as Python holds it, and how it is made of an item.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "engine/engine.h"

namespace pc {

// Python objects die with the interpreter's lock held: the engine hands over what has ended (take_spent).
class Work {
 public:
  Work(std::shared_ptr<engine::Engine> engine, py::object item) : item(std::move(item)), engine_(std::move(engine)) {}

  const std::string& name() const { return pending->name(); }
  bool done() const { return pending->done(); }
  py::object wait(std::optional<double> timeout) const;
  void when_done(py::object callback);
  void call_back();

  std::shared_ptr<engine::Pending> pending;
  py::object item, result = py::none(), error = py::none(), landing = py::none();
  std::vector<py::object> buffers;  // views of the item's arrays

 private:
  void wait_done(std::optional<double> timeout) const;

  std::shared_ptr<engine::Engine> engine_;
  std::vector<py::object> callbacks_;
};

template <> inline constexpr bool is_bound<Work> = true;

std::shared_ptr<Work> work_of(const std::shared_ptr<void>& kept);

// Reads an item into an announcement, and checks what can be checked alone.  `group`: of how many, and their hash.
std::shared_ptr<engine::Pending> read_item(const std::shared_ptr<Work>& work, const Team& team, uint64_t group,
                                           size_t together);

}  // namespace pc
