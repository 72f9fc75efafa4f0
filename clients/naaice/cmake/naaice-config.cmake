# Package "naaice": find_package(naaice) defines naaice::low_level, naaice::middleware and naaice::swnaa. All three are
# one library; the names are those of the NAAICE communication library.
include(CMakeFindDependencyMacro)
find_dependency(Threads REQUIRED)

# This file is in LIBDIR/cmake/naaice; LIBDIR is PREFIX/lib, PREFIX/lib64 or PREFIX/lib/TRIPLET.
get_filename_component(_naaice_libdir "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
find_library(NAAICE_LIBRARY naaice HINTS "${_naaice_libdir}" NO_DEFAULT_PATH)
find_path(NAAICE_INCLUDE_DIR naaice_ap2.h NO_DEFAULT_PATH
  HINTS "${_naaice_libdir}/../include/naaice" "${_naaice_libdir}/../../include/naaice")
# The library loads both at run time. Programs that call them need them at link time.
find_library(NAAICE_IBVERBS_LIBRARY ibverbs)
find_library(NAAICE_RDMACM_LIBRARY rdmacm)

if(NOT NAAICE_LIBRARY OR NOT NAAICE_INCLUDE_DIR)
  set(naaice_FOUND FALSE)
  set(naaice_NOT_FOUND_MESSAGE "libnaaice.so is not in ${_naaice_libdir}, or its headers are not in include/naaice beside")
  return()
endif()

foreach(_naaice_target low_level middleware swnaa)
  if(NOT TARGET naaice::${_naaice_target})
    add_library(naaice::${_naaice_target} SHARED IMPORTED)
    set_target_properties(naaice::${_naaice_target} PROPERTIES
      IMPORTED_LOCATION "${NAAICE_LIBRARY}"
      IMPORTED_SONAME libnaaice.so
      INTERFACE_INCLUDE_DIRECTORIES "${NAAICE_INCLUDE_DIR}")
    target_link_libraries(naaice::${_naaice_target} INTERFACE Threads::Threads)
    foreach(_naaice_library NAAICE_IBVERBS_LIBRARY NAAICE_RDMACM_LIBRARY)
      if(${_naaice_library})
        target_link_libraries(naaice::${_naaice_target} INTERFACE "${${_naaice_library}}")
      endif()
    endforeach()
  endif()
endforeach()
