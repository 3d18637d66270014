# pc_settings: the C++ rows of the settings table, written by pycollective/settings.py; its header is made before whatever
# links it is compiled.
find_package(Python REQUIRED COMPONENTS Interpreter)

get_filename_component(PC_SETTINGS_TABLE ${CMAKE_CURRENT_LIST_DIR}/../pycollective/settings.py ABSOLUTE)
set(PC_SETTINGS_FOLDER ${CMAKE_CURRENT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${PC_SETTINGS_FOLDER})  # an imported pc_core includes it before the header is made
add_custom_command(
  OUTPUT ${PC_SETTINGS_FOLDER}/pc_settings.h
  COMMAND ${Python_EXECUTABLE} -I ${PC_SETTINGS_TABLE} ${PC_SETTINGS_FOLDER}/pc_settings.h
  DEPENDS ${PC_SETTINGS_TABLE}
  COMMENT "The core's settings"
  VERBATIM)
add_custom_target(pc_settings_header DEPENDS ${PC_SETTINGS_FOLDER}/pc_settings.h)
add_library(pc_settings INTERFACE)
target_include_directories(pc_settings INTERFACE ${PC_SETTINGS_FOLDER})
add_dependencies(pc_settings pc_settings_header)
