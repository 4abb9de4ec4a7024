# FindCAF: the C++ Actor Framework, 0.17.x.
#
# Newer releases ship a CMake package; Debian's 0.17.6 does not. The package is tried first, then headers and
# libraries are looked up. Either way the targets are CAF::core, CAF::io and CAF::openssl.

find_package(CAF CONFIG QUIET)
if(CAF_CONFIG)
  # Its version file may hold with any that is older.
  if(CAF_VERSION VERSION_GREATER_EQUAL 0.18)
    message(FATAL_ERROR "${CAF_CONFIG}: is of CAF ${CAF_VERSION}, expected 0.17, whose messages and actors are others; "
      "take it out of CMAKE_PREFIX_PATH, or set CAF_DIR to another")
  endif()
  set(CAF_FOUND TRUE)
  return()
endif()

find_path(CAF_INCLUDE_DIR caf/all.hpp)
if(CAF_INCLUDE_DIR AND EXISTS "${CAF_INCLUDE_DIR}/caf/config.hpp")
  file(STRINGS "${CAF_INCLUDE_DIR}/caf/config.hpp" _caf_version_line REGEX "#define CAF_VERSION +[0-9]+")
  string(REGEX MATCH "[0-9]+$" _caf_version_number "${_caf_version_line}")
  if(_caf_version_number)
    math(EXPR _caf_major "${_caf_version_number} / 10000")
    math(EXPR _caf_minor "(${_caf_version_number} / 100) % 100")
    math(EXPR _caf_patch "${_caf_version_number} % 100")
    set(CAF_VERSION "${_caf_major}.${_caf_minor}.${_caf_patch}")
  endif()
endif()

foreach(_component IN LISTS CAF_FIND_COMPONENTS)
  find_library(CAF_${_component}_LIBRARY caf_${_component})
  if(CAF_${_component}_LIBRARY)
    set(CAF_${_component}_FOUND TRUE)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION HANDLE_COMPONENTS)

if(CAF_FOUND)
  find_package(Threads REQUIRED)
  foreach(_component IN LISTS CAF_FIND_COMPONENTS)
    # Whoever looked for fewer before has made some of them.
    if(TARGET CAF::${_component})
      continue()
    endif()
    add_library(CAF::${_component} UNKNOWN IMPORTED)
    set_target_properties(
      CAF::${_component} PROPERTIES IMPORTED_LOCATION "${CAF_${_component}_LIBRARY}"
                                    INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}")
    if(_component STREQUAL "core")
      set_property(TARGET CAF::core APPEND PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads)
    else()
      set_property(TARGET CAF::${_component} APPEND PROPERTY INTERFACE_LINK_LIBRARIES CAF::core)
    endif()
  endforeach()
endif()
