# FindCAF: the C++ Actor Framework, 0.17.x.
#
# Newer releases ship a CMake package, which is refused; Debian's 0.17.6 does not. A package is tried first, then headers and
# libraries are looked up. Either way the targets are CAF::core, CAF::io and CAF::openssl.

set(_caf_missing ${CAF_FIND_COMPONENTS})
foreach(_component IN LISTS CAF_FIND_COMPONENTS)
  if(TARGET CAF::${_component})
    list(REMOVE_ITEM _caf_missing ${_component})
  endif()
endforeach()
if(CAF_FIND_COMPONENTS AND NOT _caf_missing)
  # Whoever looked before has made them, or builds CAF itself.
  set(CAF_FOUND TRUE)
  return()
endif()

include(FindPackageHandleStandardArgs)
find_package(CAF CONFIG QUIET)
if(CAF_CONFIG)
  set(_caf_is_usable TRUE)
  # Its version file may hold with any that is older.
  if(CAF_VERSION VERSION_GREATER_EQUAL 0.18)
    set(_caf_is_usable FALSE)
  endif()
  string(CONCAT _caf_why "${CAF_CONFIG} is of CAF ${CAF_VERSION}, expected 0.17, whose messages and actors are others. "
    "Take its prefix out of CMAKE_PREFIX_PATH, or into CMAKE_IGNORE_PREFIX_PATH.")
  find_package_handle_standard_args(CAF REQUIRED_VARS _caf_is_usable REASON_FAILURE_MESSAGE "${_caf_why}")
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
