// A thread of this process shows to ranks on other hosts that it runs, and finds out which hosts are silent, also while
// no rank calls: a host whose processes are all stopped still acknowledges what it is sent.
#pragma once

#include <memory>

namespace pc {

class ControlLinks;

// Begins to send and to receive heartbeats on these links, for as long as they exist.
void start_heartbeats(const std::shared_ptr<ControlLinks>& links);

}  // namespace pc
