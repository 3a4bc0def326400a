#!/bin/sh
# Prints the path of the driver manifest of a software GPU (Mesa's llvmpipe), once all that the tests on it and the Vulkan
# build of llama.cpp need is there. If something is missing, root installs Debian's packages.
set -eu

is_complete() {
    command -v glslc >/dev/null && [ -e "$(device)" ] &&
        printf '#include <vulkan/vulkan.hpp>\n#include <spirv/unified1/spirv.hpp>\n' | c++ -E -x c++ - >/dev/null 2>&1
}

device() {
    find /usr/share/vulkan/icd.d /usr/local/share/vulkan/icd.d -name 'lvp_icd*.json' 2>/dev/null | head -n 1
}

if ! is_complete && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing the Vulkan compiler and headers, and a software GPU" >&2
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    what="glslc libvulkan-dev spirv-headers mesa-vulkan-drivers"
    # shellcheck disable=SC2086
    { apt-get update && apt-get install -y --no-install-recommends $what; } >"$log" 2>&1 || tail -n 5 "$log" >&2
    rm -f "$log"
fi

if is_complete; then
    device
    exit 0
fi
echo "The tests on a software GPU need glslc, the headers of Vulkan and SPIR-V, and Mesa's llvmpipe." >&2
echo "Debian, Ubuntu: apt-get install glslc libvulkan-dev spirv-headers mesa-vulkan-drivers" >&2
exit 1
