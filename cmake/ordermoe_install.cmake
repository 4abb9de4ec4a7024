# What other programs need: libraries, the headers of include/ordermoe, and a package that find_package(OrderMoE CONFIG) finds.
# The libraries are static; that of a folder is exported under a name of its own because the others link it, and is nobody
# else's.

#
# Component `command` is the program, the unit of a node and the bundled data, which the program finds beside itself.

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
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/OrderMoEConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/OrderMoEConfig.cmake" INSTALL_DESTINATION "${ORDERMOE_PACKAGE_DIR}")
# Before 1.0 a minor version may change what is in the headers.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/OrderMoEConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/OrderMoEConfig.cmake" "${PROJECT_BINARY_DIR}/OrderMoEConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindCAF.cmake" DESTINATION "${ORDERMOE_PACKAGE_DIR}" COMPONENT embedding)

install(TARGETS ordermoe RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT command)
install(FILES "${PROJECT_SOURCE_DIR}/config/systemd/ordermoe-node@.service" DESTINATION lib/systemd/system COMPONENT command)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/data/" DESTINATION "${CMAKE_INSTALL_DATADIR}/ordermoe" COMPONENT command
  PATTERN "*.md" EXCLUDE)
