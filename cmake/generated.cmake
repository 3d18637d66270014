# pc_generated: the tables that Python and C++ share.  Each is a Python file that writes its rows as a C++ header; the
# headers are generated before anything that links pc_generated is compiled.
find_package(Python REQUIRED COMPONENTS Interpreter)

get_filename_component(PC_PACKAGE ${CMAKE_CURRENT_LIST_DIR}/../pycollective ABSOLUTE)
set(PC_GENERATED_FOLDER ${CMAKE_CURRENT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${PC_GENERATED_FOLDER})  # an imported pc_core includes the folder before the headers are generated

function(pc_generate header table)
  add_custom_command(
    OUTPUT ${PC_GENERATED_FOLDER}/${header}
    COMMAND ${Python_EXECUTABLE} -I ${PC_PACKAGE}/${table} ${PC_GENERATED_FOLDER}/${header}
    DEPENDS ${PC_PACKAGE}/${table}
    COMMENT "${header} from ${table}"
    VERBATIM)
  set(PC_GENERATED ${PC_GENERATED} ${PC_GENERATED_FOLDER}/${header} PARENT_SCOPE)
endfunction()

set(PC_GENERATED)
pc_generate(pc_settings.h settings.py)
pc_generate(pc_collectives.h schedule/collectives.py)
pc_generate(pc_dtypes.h dtypes.py)
add_custom_target(pc_generated_headers DEPENDS ${PC_GENERATED})
add_library(pc_generated INTERFACE)
target_include_directories(pc_generated INTERFACE ${PC_GENERATED_FOLDER})
add_dependencies(pc_generated pc_generated_headers)
