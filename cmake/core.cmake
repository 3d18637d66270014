# pc_core: everything except the bindings.
set(PC_CORE_LIBRARY "" CACHE FILEPATH "An existing pc_core built from these sources, for tests that link it")
if(PC_CORE_LIBRARY)
  add_library(pc_core STATIC IMPORTED)
  set_target_properties(pc_core PROPERTIES IMPORTED_LOCATION ${PC_CORE_LIBRARY})
  target_link_libraries(pc_core INTERFACE pc_options)
  return()
endif()

# The kernels are one source compiled once per instruction set; the best one is chosen at run time.
add_library(pc_core STATIC
  csrc/base/environment.cpp
  csrc/base/forks.cpp
  csrc/window/local.cpp
  csrc/dtype/dispatch.cpp
  csrc/dtype/kernels_base.cpp
  csrc/dtype/names.cpp
  csrc/schedule/layout.cpp
  csrc/executor/control.cpp
  csrc/executor/copy.cpp
  csrc/executor/ledger.cpp
  csrc/executor/plan.cpp
  csrc/executor/table_directory.cpp
  csrc/executor/cpu/calls.cpp
  csrc/executor/cpu/heaps.cpp
  csrc/executor/cpu/liveness.cpp
  csrc/executor/cpu/reports.cpp
  csrc/executor/cpu/staging.cpp
  csrc/executor/cpu/team.cpp
  csrc/executor/cpu/waiting.cpp
  csrc/executor/cpu/windows.cpp
  csrc/executor/cpu/hosts/control_links.cpp
  csrc/executor/cpu/hosts/heartbeats.cpp
  csrc/executor/cpu/hosts/remote.cpp
  csrc/executor/cpu/hosts/remotes.cpp
  csrc/executor/cpu/hosts/team_hosts.cpp
  csrc/engine/engine.cpp
  csrc/engine/fused.cpp
  csrc/engine/peers.cpp
  csrc/engine/stalls.cpp
  csrc/engine/timeline.cpp
  csrc/engine/negotiation/agreement.cpp
  csrc/engine/negotiation/announcement.cpp
  csrc/engine/negotiation/board.cpp
  csrc/engine/negotiation/board_lock.cpp
  csrc/engine/negotiation/policy.cpp
  csrc/engine/negotiation/rounds.cpp
  csrc/engine/negotiation/signature.cpp
  csrc/link/tcp.cpp
  csrc/link/ucx_library.cpp
  csrc/link/ucx_link.cpp
  csrc/link/ucx_worker.cpp
  csrc/progress/progress.cpp
  csrc/window/heap.cpp
  csrc/window/segment.cpp
  csrc/window/memfd.cpp
  csrc/window/posix_shm.cpp)
target_link_libraries(pc_core PUBLIC pc_options)
set_target_properties(pc_core PROPERTIES UNITY_BUILD ${PC_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE 11)
# Sources that the GPU module also links are kept out of unity units, or it would link the rest of their unit, and then
# the kernels.
set_source_files_properties(csrc/base/environment.cpp csrc/dtype/names.cpp csrc/schedule/layout.cpp
  csrc/dtype/kernels_base.cpp csrc/dtype/kernels_avx2.cpp csrc/dtype/kernels_avx512.cpp
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set(kernels -O3)
set(quiet)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Without the flag, copy loops become memcpy calls again (see copy_bytes in csrc/dtype/kernels.h).
  list(APPEND kernels -fno-tree-loop-distribute-patterns)
  set(quiet -Wno-maybe-uninitialized)  # gcc 12 warns about its own headers
endif()
if(NOT PC_TSAN AND NOT PC_ASAN)
  set_source_files_properties(csrc/dtype/kernels_base.cpp PROPERTIES COMPILE_OPTIONS "${kernels}")
endif()
# Under a sanitizer the baseline suffices: it touches the same memory, and the others take long to compile.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT PC_TSAN AND NOT PC_ASAN)
  target_sources(pc_core PRIVATE csrc/dtype/kernels_avx2.cpp csrc/dtype/kernels_avx512.cpp)
  target_compile_definitions(pc_core PRIVATE PC_X86_KERNELS)
  set(level -march=x86-64-v)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    check_cxx_compiler_flag(-march=x86-64-v3 PC_HAS_X86_64_V3)
    if(NOT PC_HAS_X86_64_V3)
      set(level -march=x86_64_v)  # zig's names
    endif()
  endif()
  set_source_files_properties(csrc/dtype/kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS "${kernels};${level}3")
  set_source_files_properties(csrc/dtype/kernels_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${kernels};${level}4;-mprefer-vector-width=512;${quiet}")
endif()
