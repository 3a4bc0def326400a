"""The backends of llama.cpp, and which of them this machine can build."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from deploy.commands import SetupFailed
from deploy.toolchain import version_lines

CUDA_FOLDER = Path("/usr/local/cuda")
HEADERS = Path(__file__).resolve().parent / "headers"  # what older Vulkan headers lack
# Run through the preprocessor, which knows better than a list of folders where headers are.
VULKAN_PROBE = """
#if __has_include(<vulkan/vulkan.hpp>) && __has_include(<spirv/unified1/spirv.hpp>)
found
#endif
"""
VULKAN_PACKAGES = {
    "apt-get": "apt-get install glslc libvulkan-dev spirv-headers mesa-vulkan-drivers",
    "dnf": "dnf install glslc vulkan-headers vulkan-loader-devel spirv-headers-devel mesa-vulkan-drivers",
    "apk": "apk add shaderc vulkan-headers vulkan-loader-dev spirv-headers mesa-vulkan-ati mesa-vulkan-intel",
    "pacman": "pacman -S shaderc vulkan-headers vulkan-icd-loader spirv-headers vulkan-radeon vulkan-intel",
}


class Backend(StrEnum):
    """Backends of llama.cpp, fastest first."""

    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"
    CPU = "cpu"

    @property
    def cmake_args(self) -> tuple[str, ...]:
        """CMake arguments that select this backend. On a Mac, Metal is built unless it is turned off."""
        if self is Backend.CPU:
            return ("-DGGML_METAL=OFF",) if platform.system() == "Darwin" else ()
        return (f"-DGGML_{self.upper()}=ON",)

    @property
    def environment(self) -> dict[str, str]:
        """Additional environment variables for the compilation. The CUDA compiler need not be on PATH."""
        if self is Backend.CUDA:
            return {"CUDACXX": cuda_compiler() or "nvcc"}
        if self is Backend.VULKAN:
            return {"CPLUS_INCLUDE_PATH": os.pathsep.join(filter(None, (str(HEADERS), _include_path())))}
        return {}

    @property
    def compiler(self) -> str:
        """The exact version of the device compiler, empty if the backend needs none. Raises SetupFailed, saying what to
        install, if it is missing."""
        if (todo := self.lacking) is not None:
            raise SetupFailed(f"FIRSTTOKEN_BACKEND={self} is not possible here: {todo}")
        if self is Backend.CUDA:
            return version_lines(cuda_compiler() or "nvcc")[-1]
        if self is Backend.VULKAN:
            return " ".join(version_lines("glslc"))
        return ""

    @property
    def lacking(self) -> str | None:
        """What is missing to build this backend and how to install it; None if nothing is."""
        if self is Backend.CUDA and cuda_compiler() is None:
            return (
                "it needs nvcc on PATH: install the CUDA toolkit (Debian, Ubuntu: apt-get install nvidia-cuda-toolkit)"
            )
        if self is Backend.METAL and platform.system() != "Darwin":
            return "Metal is Apple's; FIRSTTOKEN_BACKEND=vulkan is for every other GPU"
        if self is Backend.VULKAN and not (shutil.which("glslc") and _has_vulkan_headers()):
            how = (command for tool, command in VULKAN_PACKAGES.items() if shutil.which(tool))
            return f"it needs glslc and the headers of Vulkan and SPIR-V: {next(how, 'install the Vulkan SDK')}"
        return None


def fitting(vendors: list[str]) -> list[Backend]:
    """Backends that suit these GPUs, fastest first and the CPU last, even if they cannot be built here."""
    wanted = {
        Backend.CUDA: "NVIDIA" in vendors,
        Backend.METAL: "Apple" in vendors,
        Backend.VULKAN: bool({"NVIDIA", "AMD", "Intel"} & set(vendors)),
        Backend.CPU: True,
    }
    return [backend for backend in Backend if wanted[backend]]


def possible(vendors: list[str]) -> list[Backend]:
    """The suitable backends that can be built here."""
    return [backend for backend in fitting(vendors) if backend.lacking is None]


def advice(vendors: list[str], chosen: Backend) -> Iterator[str]:
    """What to install to use these GPUs through a faster backend than the chosen one, one line per backend."""
    for backend in fitting(vendors):
        if backend is chosen:
            return
        if backend.lacking is not None:
            yield f"the {' and '.join(vendors)} GPU could be used through {backend}; {backend.lacking}"


def cuda_compiler() -> str | None:
    """The path of nvcc, from PATH or the default install folder; None if there is none."""
    return shutil.which("nvcc") or shutil.which("nvcc", path=str(CUDA_FOLDER / "bin"))


def _has_vulkan_headers() -> bool:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return False
    command = [compiler, "-E", "-P", "-x", "c++", "-"]
    done = subprocess.run(
        command, input=VULKAN_PROBE, env={**os.environ, **Backend.VULKAN.environment}, capture_output=True, text=True
    )
    return "found" in done.stdout


def _include_path() -> str | None:
    """The inherited CPLUS_INCLUDE_PATH plus the SDK in VULKAN_SDK, for an SDK that is not installed system-wide."""
    inherited, sdk = os.environ.get("CPLUS_INCLUDE_PATH"), os.environ.get("VULKAN_SDK")
    return os.pathsep.join(filter(None, (inherited, f"{sdk}/include" if sdk else None))) or None
