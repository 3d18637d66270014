# pycollective._cuda: the same executor, compiled by nvcc.  Included if Python extensions are built.

find_program(PC_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(NOT PC_NVCC)
  if(PC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "pycollective: PC_CUDA=ON, but no nvcc was found: put it on the PATH or set CUDACXX")
  endif()
  message(STATUS "pycollective: no nvcc found; building without the GPU side")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${PC_NVCC} CACHE FILEPATH "nvcc")
include(cmake/gpus.cmake)
pc_gpus_present(present)
if(PC_CUDA STREQUAL "AUTO" AND NOT present)
  message(STATUS "pycollective: no GPU here; building without the GPU side, which takes minutes: PC_CUDA=ON builds it")
  return()
endif()
pc_gpus_of_nvcc(${PC_NVCC} known)
pc_cuda_architectures("${PC_CUDA_ARCHITECTURES}" "${present}" "${known}" CMAKE_CUDA_ARCHITECTURES)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
  if(PC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "pycollective: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old; 12.4 or newer is needed")
  endif()
  message(STATUS "pycollective: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.4; building without the GPU side")
  return()
endif()
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake older than 3.25.2 refuses C++20 with any nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
message(STATUS "pycollective: GPU side with nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

set(PC_CUDA_LIBRARY "" CACHE FILEPATH "An existing pc_cuda built from these sources, for another Python")
if(PC_CUDA_LIBRARY)
  add_library(pc_cuda STATIC IMPORTED)
  set_target_properties(pc_cuda PROPERTIES IMPORTED_LOCATION ${PC_CUDA_LIBRARY})
  target_link_libraries(pc_cuda INTERFACE pc_core CUDA::cudart_static ${CMAKE_DL_LIBS})
else()
  add_library(pc_cuda STATIC
    csrc/base/cuda/deferred_free.cpp
    csrc/base/cuda/error.cpp
    csrc/executor/cuda/loading.cpp
    csrc/executor/cuda/plan_pool.cpp
    csrc/executor/cuda/staging_copies.cpp
    csrc/executor/cuda/team.cpp
    csrc/executor/cuda/custom/custom.cpp
    csrc/executor/cuda/kernels/moves.cu
    csrc/executor/cuda/kernels/probe.cu
    csrc/executor/cuda/kernels/instantiations/complex.cu
    csrc/executor/cuda/kernels/instantiations/copies.cu
    csrc/executor/cuda/kernels/instantiations/integers.cu
    csrc/executor/cuda/kernels/instantiations/reals.cu
    csrc/executor/cuda/kernels/instantiations/scaled_integers.cu
    csrc/executor/cuda/kernels/instantiations/small_reals.cu
    csrc/executor/cuda/kernels/instantiations/weighted_sums.cu
    csrc/rail/nccl.cpp
    csrc/window/cuda_ipc.cpp
    csrc/window/cuda_vmm.cpp)
  target_link_libraries(pc_cuda PUBLIC pc_core CUDA::cudart_static ${CMAKE_DL_LIBS})
  # No contraction: a fused multiply-add would change bits against the CPU.  The standard is set explicitly because only
  # a CMake newer than nvcc knows its flag.  Developers turn warnings into errors by CMAKE_COMPILE_WARNING_AS_ERROR.
  target_compile_options(pc_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -fmad=false --expt-relaxed-constexpr -Xfatbin=-compress-all>)

  include(cmake/custom.cmake)
  pc_embed_custom_programs(pc_cuda)
endif()

pybind11_add_module(_cuda MODULE NO_EXTRAS
  csrc/bindings/cuda/array.cpp
  csrc/bindings/cuda/copies.cpp
  csrc/bindings/cuda/custom.cpp
  csrc/bindings/cuda/memory.cpp
  csrc/bindings/cuda/module.cpp
  csrc/bindings/cuda/nccl.cpp
  csrc/bindings/cuda/runtime.cpp
  csrc/bindings/cuda/team.cpp)
target_link_libraries(_cuda PRIVATE pc_cuda)
# Two units: most of the compile time is pybind11, once per unit.  Linked by the C++ compiler rather than by nvcc with
# its host compiler, which may be a different one.
set_target_properties(_cuda PROPERTIES LINKER_LANGUAGE CXX UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
install(TARGETS _cuda DESTINATION pycollective)
