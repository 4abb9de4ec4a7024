# cmake -DSOURCE=folder -DFILE=build_id.cpp -P build_id.cmake writes which commit the program is built from: the last one that changed
# anything that is compiled, with a + behind it where something has changed since; nothing where there is no repository. The file is left as it
# is where it says so already.
set(id "")
set(compiled CMakeLists.txt actors bench cmake cli config embedding gateway include model net planning setup trace)
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" log -1 --format=%h --abbrev=10 -- ${compiled}
    WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE id OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND "${GIT_EXECUTABLE}" --no-optional-locks status --porcelain -- ${compiled}
    WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE changed ERROR_QUIET)
  if(id AND changed)
    string(APPEND id "+")
  endif()
endif()
set(text "#include \"config/build_id.hpp\"\n\nnamespace ordermoe {\n\nstd::string_view build_id() {\n  return \"${id}\";\n}\n\n}  // namespace ordermoe\n")
if(EXISTS "${FILE}")
  file(READ "${FILE}" there)
endif()
if(NOT "${text}" STREQUAL "${there}")
  file(WRITE "${FILE}" "${text}")
endif()
