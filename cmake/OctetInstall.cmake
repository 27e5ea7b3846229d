# What `cmake --install` puts where, apart from programs, backends and profiles, which their own folders install. Every
# path is relative to the prefix, which may move afterwards.
include(CMakePackageConfigHelpers)
set(package_dir "lib/cmake/octet")

install(DIRECTORY interfaces/octet DESTINATION include FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS octet_interfaces EXPORT octetInterfaces)
install(EXPORT octetInterfaces NAMESPACE octet:: DESTINATION "${package_dir}")
if(TARGET octet_conformance)
  install(EXPORT octetConformance NAMESPACE octet:: DESTINATION "${package_dir}" COMPONENT conformance)
endif()

set(OCTET_PROFILES_DIR "share/octet/conformance/profiles")
configure_package_config_file(cmake/octetConfig.cmake.in "${PROJECT_BINARY_DIR}/cmake/octetConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" PATH_VARS OCTET_PROFILES_DIR)
# Before 1.0 a minor version may change what a backend compiles against.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/octetConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
list(TRANSFORM OCTET_BACKEND_LINK_OPTIONS PREPEND "-Wl," OUTPUT_VARIABLE OCTET_PC_LINK_OPTIONS)
list(JOIN OCTET_PC_LINK_OPTIONS " " OCTET_PC_LINK_OPTIONS)
configure_file(cmake/octet.pc.in "${PROJECT_BINARY_DIR}/cmake/octet.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/cmake/octetConfig.cmake" "${PROJECT_BINARY_DIR}/cmake/octetConfigVersion.cmake"
  cmake/OctetAddBackend.cmake "${OCTET_BACKEND_EXPORTS}" DESTINATION "${package_dir}")
install(FILES "${PROJECT_BINARY_DIR}/cmake/octet.pc" DESTINATION share/pkgconfig)

install(DIRECTORY examples/backend_template DESTINATION share/octet/examples PATTERN "build*" EXCLUDE)
install(FILES LICENSE CHANGELOG.md docs/abi.md docs/conformance.md docs/mutants.md docs/numerics.md
  DESTINATION share/doc/octet)
