# What every target of this project shares: warnings, sanitizers, naming.

add_library(ordermoe_internal INTERFACE)
target_compile_options(ordermoe_internal INTERFACE -Wall -Wextra -Wno-unused-parameter)
if(CMAKE_UNITY_BUILD)
  # Classes with members of a source's own types, which GCC takes for a header's where sources are compiled as one.
  target_compile_options(ordermoe_internal INTERFACE -Wno-subobject-linkage)
endif()
if(ORDERMOE_WERROR)
  target_compile_options(ordermoe_internal INTERFACE -Werror)
endif()
if(ORDERMOE_SANITIZE)
  target_compile_options(ordermoe_internal INTERFACE -fsanitize=${ORDERMOE_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(ordermoe_internal INTERFACE -fsanitize=${ORDERMOE_SANITIZE})
endif()

# ordermoe_library(planning SOURCES a.cpp b.cpp PUBLIC ordermoe::config PRIVATE lib) makes the target
# ordermoe_planning with the alias ordermoe::planning, included as "planning/...". IN_MODULE: programs and the module of
# LibTorch each have their own copy, of which neither shows the other anything.
function(ordermoe_library name)
  cmake_parse_arguments(ARG "IN_MODULE" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(ordermoe_${name} STATIC ${ARG_SOURCES})
  add_library(ordermoe::${name} ALIAS ordermoe_${name})
  # Of what is installed, embedding programs see the headers of include/ alone.
  target_include_directories(ordermoe_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
  target_link_libraries(ordermoe_${name} PUBLIC ${ARG_PUBLIC} PRIVATE "$<BUILD_INTERFACE:ordermoe_internal>" ${ARG_PRIVATE})
  if(ARG_IN_MODULE)
    set_target_properties(ordermoe_${name} PROPERTIES
      POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  endif()
endfunction()

# ordermoe_test(planning LIBRARIES ordermoe::planning FILES a.test.cpp b.test.cpp) makes one executable for the
# folder and one ctest entry for each file; each file holds one BOOST_AUTO_TEST_SUITE named after it
# (placement.test.cpp: suite placement). Each is compiled by itself, as suites are namespaces called like what they
# test; or, where BY_THEMSELVES names those that have to be, the others as libraries are, several as one.
function(ordermoe_test folder)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;FILES;HEADERS;BY_THEMSELVES" ${ARGN})
  # It says that main() is here before it includes the header.
  set_source_files_properties("${PROJECT_SOURCE_DIR}/test/main.cpp" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  add_executable(test_${folder} ${ARG_FILES} "${PROJECT_SOURCE_DIR}/test/main.cpp")
  target_link_libraries(test_${folder} PRIVATE ordermoe_internal ${ARG_LIBRARIES} Boost::unit_test_framework)
  target_compile_definitions(test_${folder} PRIVATE BOOST_TEST_DYN_LINK
    ORDERMOE_TEST_DATA="${PROJECT_SOURCE_DIR}/test/data" ORDERMOE_DATA="${PROJECT_SOURCE_DIR}/data")
  if(ARG_BY_THEMSELVES)
    set_source_files_properties(${ARG_BY_THEMSELVES} "${PROJECT_SOURCE_DIR}/test/main.cpp" PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
  else()
    set_target_properties(test_${folder} PROPERTIES UNITY_BUILD OFF)
  endif()
  # Tests are compiled far oftener than they run: little optimisation of their own, and common headers once.
  target_compile_options(test_${folder} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_precompile_headers(test_${folder} PRIVATE <boost/test/unit_test.hpp> <fmt/format.h> ${ARG_HEADERS})
  foreach(file IN LISTS ARG_FILES)
    string(REPLACE ".test.cpp" "" place "${file}")
    string(REPLACE "/" "." name "${folder}.${place}")
    get_filename_component(suite "${place}" NAME)
    add_test(NAME ${name} COMMAND test_${folder} --run_test=${suite} --log_level=warning)
    set_tests_properties(${name} PROPERTIES TIMEOUT 1200)
  endforeach()
endfunction()
