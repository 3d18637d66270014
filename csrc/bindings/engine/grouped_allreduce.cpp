#include "bindings/engine/grouped_allreduce.h"

#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "bindings/engine/work.h"
#include "bindings/interpreter.h"

namespace pc {
namespace {

using engine::Announcement;
using engine::Pending;
using engine::Signature;

bool has_shape(const Signature& s, const PlainArray& x) {
  return s.dtype == x.view.dtype && static_cast<size_t>(s.dims) == x.shape.size() && s.dims <= engine::kMostDims &&
         std::equal(x.shape.begin(), x.shape.end(), s.shape.begin());
}

bool has_terms(const Signature& s, const GroupedAllreduce::How& how, size_t together) {
  return s.op == how.op && bits_of(s.prescale) == bits_of(how.prescale) &&
         bits_of(s.postscale) == bits_of(how.postscale) && static_cast<size_t>(s.together) == together;
}

// The announcement with the shape and type of x.
Announcement described(Announcement announcement, const PlainArray& x) {
  set_array(announcement, x.view, x.shape);
  check_operator(announcement.signature);
  return announcement;
}

std::vector<std::string> names_of(const std::string& label, size_t count) {
  if (count == 1) return {label};
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(label + "." + std::to_string(i));
  return names;
}

}  // namespace

bool GroupedAllreduce::read(const py::tuple& tensors, const How& how, Arrays& arrays) {
  const bool in_place = how.make.is_none();
  arrays.inputs.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!read_plain_tensor(tensors[i], in_place, arrays.inputs[i])) return false;
  if (in_place) {
    arrays.results = py::list(tensors);
    arrays.outputs = arrays.inputs;
    return true;
  }
  arrays.results = py::list(tensors.size());
  arrays.outputs.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PlainArray& x = arrays.inputs[i];
    PlainArray& y = arrays.outputs[i];
    const bool large = x.view.bytes() >= how.least;
    py::object result = large ? how.make(tensors[i]) : new_tensor_like(tensors[i], x.shape, y);
    if (!result || (large && !read_plain_tensor(result, true, y)) || y.view.bytes() != x.view.bytes()) return false;
    PyList_SET_ITEM(arrays.results.ptr(), static_cast<Py_ssize_t>(i), result.release().ptr());
  }
  return true;
}

// Remembered, or new; with the shapes and types of this call.
std::shared_ptr<GroupedAllreduce::Group> GroupedAllreduce::group_for(const std::string& label, const Arrays& arrays,
                                                                     const How& how) {
  const size_t count = arrays.inputs.size();
  const auto* found = groups_.find(label);
  if (found != nullptr && !(*found)->busy && (*found)->operations.size() == count &&
      has_terms((*found)->operations[0]->announcement().signature, how, count)) {
    const std::shared_ptr<Group> group = *found;
    for (size_t i = 0; i < count; ++i) {
      Pending& operation = *group->operations[i];
      if (!has_shape(operation.announcement().signature, arrays.inputs[i]))
        operation.renew(described(operation.announcement(), arrays.inputs[i]));
    }
    return group;
  }
  const std::vector<std::string> names = names_of(label, count);
  Signature signature;
  signature.kind = engine::Kind::allreduce;
  signature.op = how.op;
  signature.prescale = how.prescale;
  signature.postscale = how.postscale;
  signature.group = engine::group_of(names);
  signature.together = static_cast<int32_t>(count);
  auto group = std::make_shared<Group>();
  for (size_t i = 0; i < count; ++i) {
    Announcement announcement{.name = names[i], .signature = signature};
    group->operations.push_back(
        std::make_shared<Pending>(described(std::move(announcement), arrays.inputs[i]), nullptr, nullptr, nullptr));
  }
  return group;
}

void GroupedAllreduce::submit(Group& group, const Arrays& arrays, const std::shared_ptr<void>& keep) {
  for (size_t i = 0; i < group.operations.size(); ++i) {
    const ArrayView& x = arrays.inputs[i].view;
    const ArrayView& y = arrays.outputs[i].view;
    group.operations[i]->renew(x.data, y.data, place_of(*team_, x.data, y.data, x.bytes()), keep);
  }
  try {
    const Released released;
    engine_->submit(group.operations, true);
  } catch (...) {
    for (const auto& operation : group.operations) operation->refuse();
    throw;
  }
}

py::object GroupedAllreduce::run(const py::object& label, const py::object& tensors, const How& how) {
  team_->require_own();
  engine_->take_spent();
  const py::tuple inputs(tensors);  // another thread may change a list
  Arrays arrays;
  if (inputs.empty() || !read(inputs, how, arrays)) return py::none();
  const auto named = label().cast<std::string>();
  const std::shared_ptr<Group> group = group_for(named, arrays, how);
  group->busy = true;
  // Python objects: the engine hands them over to a thread with the GIL (take_spent).
  submit(*group, arrays, std::make_shared<std::pair<py::object, py::object>>(inputs, arrays.results));
  for (const auto& operation : group->operations) {
    await(*engine_, operation, std::nullopt, true);
    if (operation->fault()) throw CommunicatorFault(*operation->fault());
  }
  engine_->take_spent();  // also: the engine's thread has finished with the operations
  group->busy = false;
  groups_.insert(named, group);
  return arrays.results;
}

}  // namespace pc
