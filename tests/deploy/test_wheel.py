"""Which ways of building llama.cpp are tried, and when a cached wheel may be used."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from deploy.commands import Log, SetupFailed
from deploy.toolchain import Cpu, features_in, this_cpu
from deploy.wheel import (
    INCLUDE_HEADERS,
    PROJECT_INCLUDE,
    cache_key,
    cached_wheel,
    download_wheel,
    including_headers,
    pinned_version,
    recipes,
)

PLAIN = Cpu("x86_64", frozenset({"avx2"}))
AMX = Cpu("x86_64", frozenset({"avx2", "amx_tile", "amx_int8"}))
ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = (ROOT / "Containerfile").read_text()
HOT = ("llama-graph.cpp", "llama-kv-cache.cpp", "llama-vocab.cpp", "unicode.cpp", "mtmd-image.cpp")
ALONE = ("mtmd-helper.cpp", "mtmd-helper-gen.cpp")
CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.19)
project(llama.cpp CXX)
file(GLOB architectures clip.cpp)
set(core llama.cpp llama-graph.cpp llama-kv-cache.cpp llama-model.cpp llama-vocab.cpp unicode.cpp)
add_library(llama SHARED ${core} ${architectures})
set_target_properties(llama PROPERTIES VERSION 4.5.6 SOVERSION 4)
include(GNUInstallDirs)
install(TARGETS llama LIBRARY)
set_source_files_properties(${core} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
add_library(mtmd clip.cpp mtmd-helper.cpp mtmd-helper-gen.cpp mtmd-image.cpp)
"""
LIBRARIES = Path(sysconfig.get_path("platlib")) / "llama_cpp" / "lib"


def test_a_cpu_with_amx_is_tried_with_it_then_without_then_portably() -> None:
    names = [recipe.name for recipe in recipes(AMX)]
    assert names == ["native with AMX", "native without AMX", "portable"]


def test_the_amx_build_keeps_the_stores_that_gcc_would_drop() -> None:
    with_amx, without, portable = (shlex.join(recipe.cmake_args) for recipe in recipes(AMX))
    for language in ("C", "CXX"):
        assert f"'-DCMAKE_{language}_FLAGS=-fno-tree-dse -fno-dse" in with_amx
        assert f"'-DCMAKE_{language}_FLAGS=-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" in without
    assert "-DGGML_NATIVE=ON" in with_amx and "-DGGML_NATIVE=ON" in without
    assert "-DGGML_NATIVE=OFF" in portable


def test_a_cpu_without_amx_needs_no_special_flags() -> None:
    assert [recipe.name for recipe in recipes(PLAIN)] == ["native", "portable"]
    assert not any("-fno-" in word or "-mno-" in word for recipe in recipes(PLAIN) for word in recipe.cmake_args)


def test_every_build_includes_our_headers_wherever_the_clone_lies() -> None:
    for recipe in (recipe for cpu in (PLAIN, AMX) for recipe in recipes(cpu)):
        flags = [word for word in recipe.cmake_args if word.startswith("-DCMAKE_CXX_FLAGS=")]
        assert flags[-1].endswith(INCLUDE_HEADERS), recipe.name
    folders = including_headers({"CPLUS_INCLUDE_PATH": "/usr/include/vulkan"})["CPLUS_INCLUDE_PATH"].split(os.pathsep)
    assert folders[-1] == "/usr/include/vulkan"
    for header in INCLUDE_HEADERS.removeprefix("-include ").split(" -include "):
        assert (Path(folders[0]) / header).exists()
        assert f"-include /src/{header}" in CONTAINERFILE


def test_every_build_has_the_multimodal_library_and_not_what_the_package_leaves_out() -> None:
    assert all("-DLLAVA_BUILD=ON" in recipe.cmake_args for cpu in (PLAIN, AMX) for recipe in recipes(cpu))
    assert f"-DCMAKE_PROJECT_llama.cpp_INCLUDE=/src/{PROJECT_INCLUDE.name} -DLLAVA_BUILD=ON" in CONTAINERFILE
    installed = {file.name.split(".")[0] for file in LIBRARIES.iterdir()}
    assert "libmtmd" in installed and "libllama-common" not in installed


def configured(project: Path) -> Path:
    """The build folder of a project with the names of llama.cpp's, which shares other files than ours."""
    (project / "CMakeLists.txt").write_text(CMAKE_PROJECT)
    for file in (*HOT, *ALONE, "llama.cpp", "llama-model.cpp", "clip.cpp"):
        (project / file).touch()
    include = [f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={PROJECT_INCLUDE}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    build = project / "build"
    cmake = ["cmake", "-S", str(project), "-B", str(build), "-DCMAKE_CXX_COMPILER_WORKS=ON", *include]
    subprocess.run(cmake, check=True, capture_output=True)
    return build


def test_loops_keep_their_optimizations_and_all_other_files_are_compiled_cheaply(tmp_path: Path) -> None:
    build = configured(tmp_path)
    commands = json.loads((build / "compile_commands.json").read_text())
    level = {Path(each["file"]).name: re.findall(r"-O\d\b", each["command"])[-1] for each in commands}
    shared = {name: found for name, found in level.items() if name.startswith("unity_")}
    assert level == dict.fromkeys(HOT, "-O3") | dict.fromkeys(ALONE, "-O1") | shared
    assert set(shared.values()) == {"-O1"}
    (tmp_path / "unicode.cpp").unlink()
    failed = subprocess.run(["cmake", build], capture_output=True, text=True)
    assert failed.returncode != 0
    assert "unicode.cpp, which llama.cpp does not have" in " ".join(failed.stderr.split())


def test_a_library_is_packed_once(tmp_path: Path) -> None:
    installed = (configured(tmp_path) / "cmake_install.cmake").read_text()
    assert "/llama_cpp/lib" in installed and "libllama." in installed and "4.5.6" not in installed


def test_what_people_add_comes_last_so_that_it_wins() -> None:
    recipe = recipes(PLAIN)[0].with_extra("-DGGML_NATIVE=OFF")
    assert recipe.cmake_args[-1] == "-DGGML_NATIVE=OFF"


def test_a_wheel_is_used_again_only_where_nothing_it_depends_on_differs() -> None:
    recipe = recipes(AMX)[0]
    key = cache_key("1.0", recipe, AMX, "gcc 12")
    assert key == cache_key("1.0", recipe, Cpu("x86_64", frozenset(AMX.features)), "gcc 12")
    others = [
        cache_key("1.1", recipe, AMX, "gcc 12"),
        cache_key("1.0", recipes(AMX)[1], AMX, "gcc 12"),
        cache_key("1.0", recipe.with_extra("-DGGML_CUDA=ON"), AMX, "gcc 12"),
        cache_key("1.0", recipe, PLAIN, "gcc 12"),
        cache_key("1.0", recipe, AMX, "gcc 13"),
    ]
    assert len({key, *others}) == 6


def test_the_version_is_the_one_that_the_project_pins() -> None:
    assert pinned_version('dependencies = ["numpy>=2", "llama-cpp-python==0.3.36"]') == "0.3.36"
    assert pinned_version((ROOT / "pyproject.toml").read_text())


def test_a_version_that_is_not_pinned_is_an_error() -> None:
    with pytest.raises(SetupFailed, match="does not pin"):
        pinned_version('dependencies = ["llama-cpp-python>=0.3"]')


def test_an_empty_cache_has_no_wheel(tmp_path: Path) -> None:
    assert cached_wheel(tmp_path / "missing") is None


def test_a_built_wheel_of_the_pinned_version_is_taken_from_a_folder(tmp_path: Path) -> None:
    wheels, place, log = tmp_path / "wheels", tmp_path / "place", Log(tmp_path / "log")
    wheels.mkdir()
    for version in ("1.0", "1.1"):
        with zipfile.ZipFile(wheels / f"llama_cpp_python-{version}-py3-none-any.whl", "w") as wheel:
            facts = f"llama_cpp_python-{version}.dist-info"
            wheel.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\n")
            wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{facts}/RECORD", "")
    found = download_wheel(Path(sys.executable), "1.0", str(wheels), place, log)
    assert (found.parent, found.name) == (place, "llama_cpp_python-1.0-py3-none-any.whl")
    with pytest.raises(SetupFailed, match=f"there is no wheel of llama-cpp-python 2.0 for this machine at {wheels}"):
        download_wheel(Path(sys.executable), "2.0", str(wheels), tmp_path / "other", log)


@pytest.mark.parametrize(
    "cpuinfo",
    [
        "processor\t: 0\nflags\t\t: fpu avx2 amx_tile\n\nprocessor\t: 1\nflags\t: fpu\n",
        "Features\t: fpu avx2 amx_tile\n",
    ],
)
def test_features_are_those_of_the_first_processor(cpuinfo: str) -> None:
    assert features_in(cpuinfo) == {"fpu", "avx2", "amx_tile"}


def test_this_cpu_has_some_features() -> None:
    assert this_cpu().features
