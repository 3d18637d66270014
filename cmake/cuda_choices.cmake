# The user's choices for the GPU side: by -D, else by the environment variable of that name, else the default.  Looked
# up at every configuration: only values given by -D are cached.
#
# PC_CUDA                 build pycollective._cuda: ON, OFF, or AUTO: if there are nvcc 12.4 or newer and a GPU
# PC_CUDA_ARCHITECTURES   GPUs to build for: `native` (this machine's; without one 90 and its PTX), `wheel` (80, 90, 100
#                         and PTX for newer ones), or as in CMAKE_CUDA_ARCHITECTURES, separated by ; or ,

function(pc_choose name default)
  if(DEFINED CACHE{${name}})
    set(value "$CACHE{${name}}")
  else()
    set(value "$ENV{${name}}")
  endif()
  if(value STREQUAL "")
    set(value ${default})
  endif()
  string(REPLACE "," ";" value "${value}")
  set(${name} "${value}" PARENT_SCOPE)
endfunction()

pc_choose(PC_CUDA AUTO)
pc_choose(PC_CUDA_ARCHITECTURES native)
string(TOUPPER "${PC_CUDA}" PC_CUDA)
if(PC_CUDA MATCHES "^(0|NO|FALSE|N)$")
  set(PC_CUDA OFF)
elseif(PC_CUDA MATCHES "^(1|YES|TRUE|Y)$")
  set(PC_CUDA ON)
elseif(NOT PC_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "pycollective: PC_CUDA is ON, OFF or AUTO, not \"${PC_CUDA}\"")
endif()
