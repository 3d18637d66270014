// Allreduces of many tensors as a group, in one call from Python.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lru.h"
#include "bindings/bindings.h"
#include "engine/engine.h"

namespace pc {

// Remembers the groups of the latest calls: training reduces the same tensors, under the same names, in every step.
class GroupedAllreduce {
 public:
  // How tensors are reduced, and where results are stored.
  struct How {
    Operator op;
    double prescale, postscale;
    py::object make;  // makes the result of a tensor of `least` bytes or more; None: tensors are reduced in place
    int64_t least;
  };

  GroupedAllreduce(std::shared_ptr<Team> team, std::shared_ptr<engine::Engine> engine)
      : team_(std::move(team)), engine_(std::move(engine)) {}

  // Submits the tensors under the names LABEL.0, LABEL.1 and so on, or a single one as LABEL, and waits for them;
  // returns a list of the results.
  // `label`: returns the label, and is called unless the result is None: then a tensor is not a plain one in CPU
  // memory, and the general path has to convert or refuse it.
  // Throws as Engine.submit and Work.wait do.
  py::object run(const py::object& label, const py::object& tensors, const How& how);

 private:
  struct Arrays {
    std::vector<PlainArray> inputs, outputs;
    py::list results;
  };
  // The operations of a group.  Used by one call at a time, and by none if that has failed: the others may still be
  // waiting for these operations.
  struct Group {
    engine::Pendings operations;
    bool busy = false;
  };

  static bool read(const py::tuple& tensors, const How& how, Arrays& arrays);
  std::shared_ptr<Group> group_for(const std::string& label, const Arrays& arrays, const How& how);
  void submit(Group& group, const Arrays& arrays, const std::shared_ptr<void>& keep);

  std::shared_ptr<Team> team_;
  std::shared_ptr<engine::Engine> engine_;
  static constexpr size_t kMostGroups = 64;
  template <class K, class V> using Map = std::map<K, V>;
  LruCache<std::string, std::shared_ptr<Group>, Map> groups_{kMostGroups};  // by label
};

}  // namespace pc
