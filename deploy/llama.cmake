# CMake includes this file where llama.cpp's project begins. It leaves out what the Python package does not ship, which takes
# half of the time to compile: llama.cpp's helpers for its own programs, with parsers, a JSON library and an HTTP client.
set(LLAMA_BUILD_COMMON OFF)

# A wheel holds copies instead of links: of each library, for each of its three names in two folders. One is enough.
set(CMAKE_PLATFORM_NO_VERSIONED_SONAME ON CACHE INTERNAL "")
set(CMAKE_INSTALL_LIBDIR llama_cpp/lib CACHE PATH "" FORCE)

# Most files of a target read models, describe the graphs of a hundred architectures or move tensors about. They have the same
# long headers, so they are compiled 24 at a time (0.8 GB of memory; among 40, two define the same names), and nothing in them
# is worth more than -O1. `hot`: those with loops over cells, characters or pixels keep -O3. `alone`: those that share no file
# with others. ggml, which has all arithmetic, is left as it is.
function(compile_cheaply target hot alone)
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "^/")
  foreach(list sources hot alone)
    list(TRANSFORM ${list} PREPEND "${folder}/")
  endforeach()
  foreach(file ${hot} ${alone})
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "llama.cmake names ${file}, which llama.cpp does not have")
    endif()
  endforeach()
  target_compile_options(${target} PRIVATE -O1)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
  # llama.cpp joins the architectures alone. CMake leaves a file with options of its own alone.
  set_source_files_properties(${sources} DIRECTORY "${folder}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
  set_source_files_properties(${alone} DIRECTORY "${folder}" PROPERTIES COMPILE_OPTIONS -O1)
  set_source_files_properties(${hot} DIRECTORY "${folder}" PROPERTIES COMPILE_OPTIONS -O3)
endfunction()

function(compile_targets_cheaply)
  compile_cheaply(llama "llama-graph.cpp;llama-kv-cache.cpp;llama-vocab.cpp;unicode.cpp" "")
  compile_cheaply(mtmd "mtmd-image.cpp" "mtmd-helper.cpp;mtmd-helper-gen.cpp")
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL compile_targets_cheaply)
