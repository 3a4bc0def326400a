# CMake includes this file where llama.cpp's project begins. It leaves out what the Python package does not ship, which takes
# half of the time to compile: llama.cpp's helpers for its own programs, with parsers, a JSON library and an HTTP client.
set(LLAMA_BUILD_COMMON OFF)

# The fifty small files of the multimodal library have the same long headers; the helpers refuse to share a file with others.
function(join_mtmd)
  if(NOT TARGET mtmd)
    return()
  endif()
  set(folder "${CMAKE_SOURCE_DIR}/vendor/llama.cpp/tools/mtmd")
  set_source_files_properties("${folder}/mtmd-helper.cpp" "${folder}/mtmd-helper-gen.cpp"
    TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL join_mtmd)
