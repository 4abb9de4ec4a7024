# Debian packages of the install components (packaging/README.md has which): the target `packages`, or cpack with this build's
# CPackConfig.cmake once `ordermoe` is built, for the first two.

set(ORDERMOE_MAINTAINER "The OrderMoE authors <ordermoe@packages.invalid>" CACHE STRING "Who answers for the Debian packages made here")

set(_packaging "${PROJECT_SOURCE_DIR}/packaging/debian")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_CONTACT "${ORDERMOE_MAINTAINER}")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # Each package has its own.
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL command torch)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SOURCE ordermoe)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME ordermoe)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION net)
set(CPACK_DEBIAN_COMMAND_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SUGGESTS "ordermoe-torch, coinor-libcbc3")
# CPack indents what follows the first line, and marks empty lines.
set(CPACK_DEBIAN_COMMAND_DESCRIPTION "Mixture-of-Experts language models over uneven servers
OrderMoE serves a Mixture-of-Experts language model from several uneven
servers that only ordinary networks connect, and answers over HTTP as
OpenAI's interface does. It decides where experts are placed, where a
token goes next, and, where a stated budget of quality allows it, which
nearby expert may stand in for a distant one.

This package has the program, two small models to try it with, units for
systemd, of which none is enabled, manual pages and shell completion.")
set(CPACK_DEBIAN_COMMAND_PACKAGE_CONTROL_EXTRA "${_packaging}/postinst" "${_packaging}/prerm" "${_packaging}/postrm")
set(CPACK_DEBIAN_COMMAND_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_TORCH_PACKAGE_NAME ordermoe-torch)
set(CPACK_DEBIAN_TORCH_PACKAGE_SECTION net)
set(CPACK_DEBIAN_TORCH_PACKAGE_DEPENDS "ordermoe (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(CPACK_DEBIAN_TORCH_DESCRIPTION "Training and LibTorch's devices for OrderMoE
The module that `ordermoe` loads where it trains a model or computes with
LibTorch. Serving and planning do without it.")

set(CPACK_DEBIAN_EMBEDDING_PACKAGE_NAME libordermoe-dev)
set(CPACK_DEBIAN_EMBEDDING_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_EMBEDDING_PACKAGE_SHLIBDEPS OFF)
# What OrderMoEConfig.cmake looks for.
set(CPACK_DEBIAN_EMBEDDING_PACKAGE_DEPENDS
  "libcaf-dev, libfmt-dev, nlohmann-json3-dev, libtomlplusplus-dev, libssl-dev, libboost-dev, libicu-dev, libpcre2-dev, pkg-config | pkgconf")
set(CPACK_DEBIAN_EMBEDDING_DESCRIPTION "OrderMoE inside other programs
Static libraries, headers and a CMake package by which other C++ programs
run servers of a cluster, or ask one.")

# Every package says whose it is and what changed.
foreach(_each command:ordermoe torch:ordermoe-torch embedding:libordermoe-dev)
  string(REGEX MATCH "^([a-z]+):(.*)$" _matched "${_each}")
  set(_component "${CMAKE_MATCH_1}")
  set(_package "${CMAKE_MATCH_2}")
  install(CODE "
    if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
      set(made \"${PROJECT_BINARY_DIR}/packaging/${_package}\")
      file(REMOVE_RECURSE \"\${made}\")
      file(MAKE_DIRECTORY \"\${made}\")
      set(VERSION \"${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}\")
      set(MAINTAINER \"${ORDERMOE_MAINTAINER}\")
      string(TIMESTAMP DATE \"%a, %d %b %Y %H:%M:%S +0000\" UTC)
      configure_file(\"${_packaging}/changelog.in\" \"\${made}/changelog.Debian\" @ONLY)
      file(COPY_FILE \"${PROJECT_SOURCE_DIR}/CHANGELOG.md\" \"\${made}/changelog\")
      execute_process(COMMAND gzip -9n \"\${made}/changelog.Debian\" \"\${made}/changelog\" COMMAND_ERROR_IS_FATAL ANY)
      file(INSTALL \"\${made}/changelog.Debian.gz\" \"\${made}/changelog.gz\" \"${_packaging}/copyright\"
        DESTINATION \"\${CMAKE_INSTALL_PREFIX}/share/doc/${_package}\")
      if(EXISTS \"${_packaging}/${_package}.lintian-overrides\")
        file(INSTALL \"${_packaging}/${_package}.lintian-overrides\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/share/lintian/overrides\"
          RENAME ${_package})
      endif()
    endif()" COMPONENT ${_component})
endforeach()

include(CPack)
add_custom_target(packages
  COMMAND "${CMAKE_CPACK_COMMAND}" --config "${PROJECT_BINARY_DIR}/CPackConfig.cmake" -D "CPACK_COMPONENTS_ALL=command$<SEMICOLON>torch$<SEMICOLON>embedding"
  DEPENDS ordermoe ordermoe_torch ordermoe_node ordermoe_host
  WORKING_DIRECTORY "${PROJECT_BINARY_DIR}" VERBATIM
  COMMENT "Debian packages")
