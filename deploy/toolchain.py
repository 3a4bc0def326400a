"""The compilers of this machine, and the CPU they compile for."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.commands import SetupFailed

# Alternative programs, of which the first on PATH is used, and what they are. The wheel needs no Python headers.
NEEDED = (
    (("cc", "gcc", "clang"), "a C compiler"),
    (("c++", "g++", "clang++"), "a C++ compiler"),
    (("cmake",), "cmake"),
)
HOW = {
    "apt-get": "apt-get install build-essential cmake",
    "dnf": "dnf install gcc gcc-c++ cmake",
    "apk": "apk add build-base cmake linux-headers",
    "pacman": "pacman -S base-devel cmake",
    "brew": "xcode-select --install && brew install cmake",
}


@dataclass(frozen=True)
class Cpu:
    """What compiled code depends on: a wheel built for one Cpu must not run on another."""

    machine: str
    features: frozenset[str]

    @property
    def has_amx(self) -> bool:
        return "amx_tile" in self.features

    @property
    def name(self) -> str:
        return f"{platform.system()} {self.machine} {' '.join(sorted(self.features))}"


def this_cpu() -> Cpu:
    try:
        features = features_in(Path("/proc/cpuinfo").read_text(errors="replace"))
    except OSError:  # macOS: use the processor's name
        features = frozenset([platform.processor()])
    return Cpu(platform.machine(), features)


def features_in(cpuinfo: str) -> frozenset[str]:
    """The instruction sets that /proc/cpuinfo lists for the first processor (called flags on x86, Features on ARM)."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def compiler_version() -> str:
    """The exact versions of the compilers. Raises SetupFailed with what to install if one is missing."""
    missing = [name for programs, name in NEEDED if not any(map(shutil.which, programs))]
    if missing:
        how = next((command for tool, command in HOW.items() if shutil.which(tool)), "use the system's package manager")
        raise SetupFailed(f"llama.cpp is compiled for this CPU, which needs {' and '.join(missing)}: {how}")
    return " / ".join(_version_of(programs) for programs, _ in NEEDED[:2])


def _version_of(programs: tuple[str, ...]) -> str:
    return version_lines(next(path for path in map(shutil.which, programs) if path))[0]


def version_lines(program: str) -> list[str]:
    """The lines of a program's version output. Most compilers print the version in the first line, nvcc in the last."""
    lines = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.splitlines()
    return [line.strip() for line in lines] or [program]
