// Internal to this folder: each kind's two entry points.
#pragma once

#include "window/segment.h"

namespace pc {

std::shared_ptr<Segment> create_memfd(size_t bytes);
std::shared_ptr<Segment> attach_memfd(const std::string& token);
std::shared_ptr<Segment> create_posix_shm(size_t bytes);
std::shared_ptr<Segment> attach_posix_shm(const std::string& token);
std::shared_ptr<Segment> create_local(size_t bytes);
std::shared_ptr<Segment> attach_local(const std::string& token);

}  // namespace pc
