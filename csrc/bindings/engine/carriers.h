// The carriers of an engine, as Python creates them.
#pragma once

#include "bindings/bindings.h"
#include "engine/negotiation/board.h"
#include "engine/negotiation/rounds.h"

namespace pc {

template <> inline constexpr bool is_bound<engine::Carrier> = true;
template <> inline constexpr bool is_bound<engine::Board> = true;
template <> inline constexpr bool is_bound<engine::Rounds> = true;

}  // namespace pc
