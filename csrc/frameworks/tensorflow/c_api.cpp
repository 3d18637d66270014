#include "frameworks/tensorflow/c_api.h"

#include <dlfcn.h>

#include "base/status.h"

namespace pc::tensorflow {

Functions tf;

void resolve(const std::vector<std::string>& libraries) {
  std::vector<void*> loaded{RTLD_DEFAULT};
  for (const std::string& library : libraries)  // never closed: their functions are kept
    if (void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD); handle != nullptr) loaded.push_back(handle);
  const auto find = [&loaded](const char* name) {
    for (void* handle : loaded)
      if (void* symbol = dlsym(handle, name); symbol != nullptr) return symbol;
    throw SystemFailure(std::string("TensorFlow's libraries have no function ") + name);
  };
  Functions found;
#define PC_FIND(name, ...) found.name = reinterpret_cast<decltype(found.name)>(find(#name));
  PC_TENSORFLOW_FUNCTIONS(PC_FIND)
#undef PC_FIND
  tf = found;
}

void Status::check() const {
  if (tf.TF_GetCode(status_) != TF_OK) throw SystemFailure(tf.TF_Message(status_));
}

}  // namespace pc::tensorflow
