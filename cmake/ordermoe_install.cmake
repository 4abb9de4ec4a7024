# What other programs need: libraries, the headers of include/ordermoe, and a package that find_package(OrderMoE CONFIG) finds.
# The libraries are static; that of a folder is exported under a name of its own because the others link it, and is nobody
# else's.

#
# Component `command` is the program with its manual pages, units and completion, and the bundled data, which the program finds beside
# itself; `torch` the module for training and LibTorch's devices; `embedding` what other programs are built with.

include(CMakePackageConfigHelpers)

set(ORDERMOE_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/OrderMoE")
set(_parts config planning model net serving trace actors setup)
foreach(_part IN LISTS _parts)
  set_target_properties(ordermoe_${_part} PROPERTIES EXPORT_NAME internal_${_part})
  list(APPEND _part_targets ordermoe_${_part})
endforeach()
set_target_properties(ordermoe_node PROPERTIES EXPORT_NAME node)
set_target_properties(ordermoe_host PROPERTIES EXPORT_NAME actors)

install(TARGETS ${_part_targets} ordermoe_node ordermoe_host EXPORT OrderMoETargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT embedding)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/ordermoe" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT embedding
  FILES_MATCHING PATTERN "*.hpp")
install(EXPORT OrderMoETargets NAMESPACE OrderMoE:: DESTINATION "${ORDERMOE_PACKAGE_DIR}" COMPONENT embedding)
find_package(Boost 1.74 REQUIRED)  # Of the same version must be that of whoever links.
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/OrderMoEConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/OrderMoEConfig.cmake" INSTALL_DESTINATION "${ORDERMOE_PACKAGE_DIR}")
# Before 1.0 a minor version may change what is in the headers.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/OrderMoEConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/OrderMoEConfig.cmake" "${PROJECT_BINARY_DIR}/OrderMoEConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindCAF.cmake" DESTINATION "${ORDERMOE_PACKAGE_DIR}" COMPONENT embedding)

# The headers and examples name each other and the document so.
set(_dev_doc "${CMAKE_INSTALL_DATAROOTDIR}/doc/libordermoe-dev")
install(FILES "${PROJECT_SOURCE_DIR}/docs/EMBEDDING.md" DESTINATION "${_dev_doc}/docs" COMPONENT embedding)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${_dev_doc}" COMPONENT embedding
  FILES_MATCHING PATTERN "*.cpp" PATTERN "*.txt" PATTERN "*.md")

install(TARGETS ordermoe RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT command)
install(FILES "${PROJECT_SOURCE_DIR}/config/systemd/ordermoe-node@.service" "${PROJECT_SOURCE_DIR}/config/systemd/ordermoe-serve.service"
  DESTINATION lib/systemd/system COMPONENT command)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/data/" DESTINATION "${CMAKE_INSTALL_DATADIR}/ordermoe" COMPONENT command
  PATTERN "*.md" EXCLUDE)
# Documents under the names that help texts call them by.
file(GLOB_RECURSE _documents CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
  "${PROJECT_SOURCE_DIR}/docs/*.md" "${PROJECT_SOURCE_DIR}/data/*.md")
foreach(_document README.md config/README.md ${_documents})
  get_filename_component(_place "${_document}" DIRECTORY)
  install(FILES "${PROJECT_SOURCE_DIR}/${_document}" DESTINATION "${CMAKE_INSTALL_DOCDIR}/${_place}" COMPONENT command)
endforeach()

# Completion, where the shells look for it; Debian's zsh has another place for packages.
set(_completion "${PROJECT_SOURCE_DIR}/cli/completion")
install(FILES "${_completion}/ordermoe.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME ordermoe
  COMPONENT command)
install(FILES "${_completion}/ordermoe.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT command)
install(CODE "
  set(place site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
    set(place vendor-completions)
  endif()
  file(INSTALL \"${_completion}/_ordermoe\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/zsh/\${place}\")"
  COMPONENT command)

# The program writes its manual pages; so they fit it whatever was built before.
install(CODE "
  set(pages \"${PROJECT_BINARY_DIR}/manual\")
  file(REMOVE_RECURSE \"\${pages}\")
  execute_process(COMMAND \"$<TARGET_FILE:ordermoe>\" __manual \"\${pages}\" COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB written \"\${pages}/*.1\")
  execute_process(COMMAND gzip -9n \${written} COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB written \"\${pages}/*.1.gz\")
  file(INSTALL \${written} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\")"
  COMPONENT command)

# What LibTorch is needed for (model/torch_module.hpp has where the program looks).
install(TARGETS ordermoe_torch LIBRARY DESTINATION lib/ordermoe COMPONENT torch)
