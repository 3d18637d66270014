# The program that a user-defined operator is linked with at run time: executor/cuda/custom/kernels.cu as LTO-IR, once
# per element type, embedded in the extension.  LTO-IR of the oldest architecture serves all newer ones, including those
# not built for.

set(PC_CUSTOM_TYPES int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64)

function(pc_embed_custom_programs target)
  string(REGEX MATCHALL "[0-9]+" numbers "${CMAKE_CUDA_ARCHITECTURES}")
  list(APPEND numbers 80)
  list(SORT numbers COMPARE NATURAL)
  list(GET numbers 0 oldest)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/custom)
  file(MAKE_DIRECTORY ${folder})
  set(source ${PROJECT_SOURCE_DIR}/csrc/executor/cuda/custom/kernels.cu)
  set(host)
  if(CMAKE_CUDA_HOST_COMPILER)
    set(host -ccbin ${CMAKE_CUDA_HOST_COMPILER})
  endif()
  set(warnings)
  if(CMAKE_COMPILE_WARNING_AS_ERROR)
    set(warnings -Werror=all-warnings)
  endif()
  set(text "// Made by cmake/custom.cmake.\n")
  foreach(type IN LISTS PC_CUSTOM_TYPES)
    set(element ${type}_t)
    if(type STREQUAL "float32")
      set(element float)
    elseif(type STREQUAL "float64")
      set(element double)
    endif()
    set(program ${folder}/${type}.fatbin)
    add_custom_command(
      OUTPUT ${program}
      COMMAND ${CMAKE_CUDA_COMPILER} ${host} -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr ${warnings}
        -I${PROJECT_SOURCE_DIR}/csrc -I${PC_GENERATED_FOLDER} -DPC_ELEMENT=${element} -gencode arch=compute_${oldest},code=lto_${oldest}
        -dc -fatbin -MD -MF ${program}.d -MT ${program} -o ${program} ${source}
      DEPENDS ${source} ${PC_GENERATED}
      DEPFILE ${program}.d
      COMMENT "LTO-IR of the kernels for a user-defined operator on ${type}"
      VERBATIM)
    list(APPEND programs ${program})
    set(symbol pc_custom_${type})
    string(APPEND text "asm(\".section .rodata\\n.balign 16\\n.global ${symbol}_begin\\n.hidden ${symbol}_begin\\n\"\n"
      "    \"${symbol}_begin:\\n.incbin \\\"${program}\\\"\\n.global ${symbol}_end\\n.hidden ${symbol}_end\\n\"\n"
      "    \"${symbol}_end:\\n.previous\\n\");\n")
  endforeach()
  file(CONFIGURE OUTPUT ${folder}/programs.cpp CONTENT "${text}" @ONLY)
  set_source_files_properties(${folder}/programs.cpp PROPERTIES OBJECT_DEPENDS "${programs}"
    COMPILE_OPTIONS -fno-lto)  # LTO would separate the assembly from its users
  target_sources(${target} PRIVATE ${folder}/programs.cpp ${programs})
endfunction()
