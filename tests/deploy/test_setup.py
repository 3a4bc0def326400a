"""Setting up: when there is nothing to do, whom a failing self-test blames, and what a failing command shows."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import backend, setup
from deploy.backend import Backend, advice, cuda_compiler, fitting
from deploy.commands import Log, SetupFailed
from deploy.setup import Choices, Stamp, choices_of, computes_on, dependencies, success, verdict
from deploy.toolchain import Cpu, compiler_version
from deploy.wheel import pinned_version
from inference.llama import Device
from inference.provisioning.selftest import place

ROOT = Path(__file__).resolve().parents[2]
HOST, GPU = Device("CPU", "Some CPU", False, 1, 1), Device("CUDA0", "Some GPU", True, 1, 1)
CPU = Cpu("x86_64", frozenset({"avx2"}))
NO = Choices(Backend.CPU)
STAMP = Stamp.of(Path("/clone"), "dependencies", CPU, NO, dev=False)


def test_an_unchanged_project_has_an_unchanged_stamp(tmp_path: Path) -> None:
    STAMP.write(tmp_path / "setup.json")
    assert Stamp.read(tmp_path / "setup.json") == STAMP


def test_whatever_matters_changes_the_stamp() -> None:
    others = {
        Stamp.of(Path("/moved"), "dependencies", CPU, NO, dev=False),
        Stamp.of(Path("/clone"), "dependencies, one more", CPU, NO, dev=False),
        Stamp.of(Path("/clone"), "dependencies", Cpu("x86_64", frozenset({"avx512f"})), NO, dev=False),
        Stamp.of(Path("/clone"), "dependencies", CPU, replace(NO, backend=Backend.VULKAN), dev=False),
        Stamp.of(Path("/clone"), "dependencies", CPU, replace(NO, cmake_args="-DX=1"), dev=False),
        Stamp.of(Path("/clone"), "dependencies", CPU, replace(NO, wheels="/wheels"), dev=False),
        Stamp.of(Path("/clone"), "dependencies", CPU, NO, dev=True),
    }
    assert len(others | {STAMP}) == 8


def test_what_is_compiled_into_llama_cpp_changes_the_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = tmp_path / "loops.h"
    loops.write_text("// another loop\n")
    monkeypatch.setattr("deploy.wheel.HEADERS", (loops,))
    assert Stamp.of(Path("/clone"), "dependencies", CPU, NO, dev=False) != STAMP


@pytest.mark.parametrize("content", ["", "{", "[]", '{"place": "older version"}'])
def test_an_unreadable_stamp_is_no_stamp(tmp_path: Path, content: str) -> None:
    (tmp_path / "setup.json").write_text(content)
    assert Stamp.read(tmp_path / "setup.json") is None


def test_a_choice_holds_until_another_is_made() -> None:
    said = {"FIRSTTOKEN_BACKEND": "vulkan", "CMAKE_ARGS": "-DX=1", "FIRSTTOKEN_WHEELS": "/wheels"}
    chosen = choices_of(said, None, best=Backend.CPU)
    assert chosen == Choices(Backend.VULKAN, "-DX=1", "/wheels")
    before = Stamp.of(Path("/clone"), "dependencies", CPU, chosen, dev=False)
    assert choices_of({}, before, best=Backend.CPU) == chosen
    taken_back = dict.fromkeys(said, "") | {"FIRSTTOKEN_BACKEND": "cpu"}
    assert choices_of(taken_back, before, best=Backend.CUDA) == NO
    assert choices_of({"FIRSTTOKEN_BACKEND": "auto"}, before, best=Backend.CUDA).backend is Backend.CUDA
    assert choices_of({}, STAMP, best=Backend.CUDA) == NO


@pytest.mark.parametrize("best", Backend)
def test_what_the_machine_has_is_used_where_nobody_says_otherwise(best: Backend) -> None:
    assert choices_of({}, None, best=best).backend is best
    assert choices_of({"FIRSTTOKEN_BACKEND": "cpu"}, None, best=best).backend is Backend.CPU


def test_a_backend_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(SetupFailed, match="must be auto, cuda, metal, vulkan, cpu, not 'opencl'"):
        choices_of({"FIRSTTOKEN_BACKEND": "opencl"}, None, best=Backend.CPU)


@pytest.mark.parametrize(
    ("vendors", "backends"),
    [
        ([], ["cpu"]),
        (["NVIDIA"], ["cuda", "vulkan", "cpu"]),
        (["AMD"], ["vulkan", "cpu"]),
        (["Intel"], ["vulkan", "cpu"]),
        (["Apple"], ["metal", "cpu"]),
    ],
)
def test_each_kind_of_gpu_has_its_backends_best_first(vendors: list[str], backends: list[str]) -> None:
    assert fitting(vendors) == backends


def test_a_mac_is_built_for_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Metal is Apple's" in (Backend.METAL.lacking or "")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert Backend.METAL.lacking is None
    assert Backend.CPU.cmake_args == ("-DGGML_METAL=OFF",)


def test_what_a_gpu_needs_is_said_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(backend, "CUDA_FOLDER", tmp_path / "cuda")
    (tmp_path / "apt-get").touch(mode=0o755)
    assert "apt-get install glslc libvulkan-dev spirv-headers" in (Backend.VULKAN.lacking or "")
    with pytest.raises(SetupFailed, match="FIRSTTOKEN_BACKEND=vulkan is not possible here: it needs glslc"):
        _ = Backend.VULKAN.compiler
    cuda, vulkan = advice(["NVIDIA"], Backend.CPU)
    assert "NVIDIA GPU could be used through cuda; it needs nvcc" in cuda and "through vulkan" in vulkan
    assert len(list(advice(["NVIDIA"], Backend.VULKAN))) == 1
    assert not list(advice(["NVIDIA"], Backend.CUDA)) and not list(advice([], Backend.CPU))


def test_vulkan_finds_the_headers_of_an_sdk_behind_what_older_ones_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CPLUS_INCLUDE_PATH", raising=False)
    monkeypatch.setenv("VULKAN_SDK", "/sdk")
    path = Backend.VULKAN.environment["CPLUS_INCLUDE_PATH"].split(os.pathsep)
    assert path == [str(ROOT / "deploy" / "headers"), "/sdk/include"]


def test_the_compiler_of_the_gpu_need_not_be_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(backend, "CUDA_FOLDER", tmp_path / "cuda")
    assert cuda_compiler() is None
    with pytest.raises(SetupFailed, match="needs nvcc"):
        _ = Backend.CUDA.compiler
    compiler = tmp_path / "cuda" / "bin" / "nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.write_text("#!/bin/sh\necho nvcc: NVIDIA\necho Build cuda_12.9\n")
    compiler.chmod(0o755)
    assert (cuda_compiler(), Backend.CUDA.compiler) == (str(compiler), "Build cuda_12.9")


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Backend]:
    """Every build but the one for the CPU fails, on a machine with an NVIDIA GPU and all that compiles for it."""
    tried: list[Backend] = []

    def install(*of: object, insisted: bool) -> None:
        choices = of[2]
        assert isinstance(choices, Choices)
        tried.append(choices.backend)
        if choices.backend is not Backend.CPU:
            raise SetupFailed("the compiler does not know this GPU")

    monkeypatch.setattr(setup, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(setup, "_make_environment", lambda **_: None)
    monkeypatch.setattr(setup, "_install_working_wheel", install)
    monkeypatch.setattr(setup, "_installing", lambda _: nullcontext())
    monkeypatch.setattr(setup, "gpus", lambda: ["NVIDIA"])
    monkeypatch.setattr(setup, "possible", fitting)
    monkeypatch.delenv("FIRSTTOKEN_BACKEND", raising=False)
    return tried


def test_a_backend_that_fails_leaves_the_next_best(tried: list[Backend], tmp_path: Path) -> None:
    setup._set_up(dev=False, force=False)
    assert tried == [Backend.CUDA, Backend.VULKAN, Backend.CPU]
    stamp = Stamp.read(tmp_path / "setup.json")
    assert stamp is not None and stamp.backend == "cpu"


def test_a_backend_that_was_asked_for_fails_alone(tried: list[Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTTOKEN_BACKEND", "cuda")
    with pytest.raises(SetupFailed, match="does not know"):
        setup._set_up(dev=False, force=False)
    assert tried == [Backend.CUDA]


@pytest.mark.parametrize(
    ("wheels", "insisted", "installed", "fails"),
    [
        ("", False, ["native", "portable"], True),
        ("/wheels", False, ["prebuilt"], False),
        ("/empty", False, ["native", "portable"], True),
        ("/wheels", True, ["prebuilt"], False),
    ],
)
def test_a_built_wheel_is_tried_before_compiling(
    wheels: str, insisted: bool, installed: list[str], fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled here crashes; what others built passes."""

    def download(python: Path, version: str, source: str, folder: Path, log: Log) -> Path:
        if source == "/empty":
            raise SetupFailed("there is no wheel")
        return tmp_path / "prebuilt"

    done: list[str] = []
    monkeypatch.setattr(setup, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(setup, "download_wheel", download)
    monkeypatch.setattr(setup, "wheel_of", lambda _, recipe, *__: tmp_path / recipe.name)
    monkeypatch.setattr(setup, "_install", lambda wheel, *_, **__: done.append(wheel.name))
    passes = (None, "rows agree on the GPU (x)")
    monkeypatch.setattr(setup, "_self_test", lambda: passes if done[-1] == "prebuilt" else ("killed", ""))
    choices, log = Choices(Backend.VULKAN, wheels=wheels), Log(tmp_path / "log")
    arguments = ("1", CPU, choices, log, lambda: done.append("dependencies"))
    if fails:
        with pytest.raises(SetupFailed, match="No build of llama"):
            setup._install_working_wheel(*arguments, insisted=insisted)
    else:
        setup._install_working_wheel(*arguments, insisted=insisted)
    assert done == [each for name in installed for each in ("dependencies", name)]


@pytest.mark.parametrize("insisted", [False, True])
def test_a_build_for_a_gpu_that_finds_none_is_kept_only_where_somebody_insists(
    insisted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "wheel_of", lambda *_: tmp_path)
    monkeypatch.setattr(setup, "_install", lambda *_, **__: None)
    monkeypatch.setattr(setup, "_self_test", lambda: (None, "rows agree on the CPU"))
    arguments = ("1", CPU, Choices(Backend.VULKAN), Log(tmp_path / "log"), lambda: None)
    if insisted:
        setup._install_working_wheel(*arguments, insisted=True)
        assert "not on a GPU" in capsys.readouterr().out
    else:
        with pytest.raises(SetupFailed, match="no device was found"):
            setup._install_working_wheel(*arguments, insisted=False)


def test_a_passing_self_test_keeps_the_build() -> None:
    assert verdict(0, "") is None


def test_setup_names_the_device_that_the_self_test_computed_on() -> None:
    gpu, cpu = (f"1, 5 and 64 rows agree on {place(found)}" for found in ([GPU, HOST], [HOST]))
    assert success("native", gpu, Backend.CUDA).endswith(
        "passed its self-test (1, 5 and 64 rows agree on the GPU (Some GPU))"
    )
    assert success("native", cpu, Backend.CPU).endswith("passed its self-test (1, 5 and 64 rows agree on the CPU)")


@pytest.mark.parametrize(("kind", "lists"), [(Backend.CUDA, "nvidia-smi"), (Backend.VULKAN, "vulkaninfo")])
def test_a_build_for_a_gpu_that_found_none_is_not_praised_for_one(kind: Backend, lists: str) -> None:
    said = success("native", f"1, 5 and 64 rows agree on {place([HOST])}", kind)
    assert "no device was found" in said and "on the CPU" in said and lists in said
    assert "FIRSTTOKEN_BACKEND=cpu" in said and not computes_on(kind, said)


def test_a_crash_or_wrong_numbers_are_the_builds_fault() -> None:
    assert verdict(-signal.SIGSEGV, "") == "killed by SIGSEGV"
    assert verdict(1, "Traceback ...\nAssertionError: 5 rows differ") == "AssertionError: 5 rows differ"


def test_any_other_failure_is_not_the_builds_fault() -> None:
    with pytest.raises(SetupFailed, match="could not run: ModuleNotFoundError: numpy"):
        verdict(1, "Traceback ...\nModuleNotFoundError: numpy")


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("seq 100", ["93", "94", "95", "96", "97", "98", "99", "100"]),
        ("seq 100; echo 'CMake Error: no generator'; echo more", ["CMake Error: no generator", "more"]),
        ("echo 'x.c:3:1: error: no x'; echo '-Werror=y' ; echo 'ERROR: failed'", ["x.c:3:1: error: no x", "-Werror=y"]),
    ],
)
def test_a_failing_command_shows_its_first_complaint_and_names_its_log(
    tmp_path: Path, script: str, shown: list[str]
) -> None:
    log = Log(tmp_path / "setup.log")
    with pytest.raises(SetupFailed) as failure:
        log.run(["sh", "-c", f"{script}; exit 3"], "It could not be built")
    lines = str(failure.value).splitlines()
    assert lines[: len(shown)] == shown
    assert len(lines) <= 9
    assert lines[-1] == f"It could not be built; the whole log: {tmp_path}/setup.log"
    assert set(shown) <= set((tmp_path / "setup.log").read_text().splitlines())


def test_all_dependencies_but_the_compiled_one_are_installed_meanwhile() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    worker, tests = (dependencies(pyproject, dev=dev) for dev in (False, True))
    declared = tomllib.loads(pyproject)["project"]["dependencies"]
    assert set(declared) - set(worker) == {f"llama-cpp-python=={pinned_version(pyproject)}"}
    assert set(worker) < set(tests) and any(name.startswith("pytest>") for name in tests)
    assert set(worker) - set(declared) == set(tomllib.loads(pyproject)["build-system"]["requires"])


def test_what_runs_meanwhile_fails_where_it_is_waited_for(tmp_path: Path) -> None:
    log = Log(tmp_path / "dependencies.log")
    failure = pytest.raises(SetupFailed, match=f"^ERROR: no index\nNot installed; the whole log: {log.path}$")
    with log.running(["sh", "-c", "echo 'ERROR: no index'; exit 1"], "Not installed") as finish, failure:
        finish()
    with log.running(["true"], "Not installed") as finish:
        finish()


@pytest.mark.parametrize("reason", [KeyboardInterrupt, SetupFailed])
def test_what_runs_meanwhile_is_stopped_with_all_that_it_started(tmp_path: Path, reason: type[BaseException]) -> None:
    """The shell waits for the program that it has started, as pip does."""
    log = Log(tmp_path / "dependencies.log")
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(reason), log.running(["sh", "-c", f"{sys.executable} -c '{script}'; exit 1"], "Not installed"):
        while len(lines := log.path.read_text().splitlines()) < 2:
            time.sleep(0.01)
        raise reason
    with pytest.raises(ProcessLookupError):
        os.kill(int(lines[1]), 0)


def test_an_old_python_is_told_which_one_is_needed() -> None:
    script = "import sys; sys.version_info = (3, 10, 13); import deploy.setup"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: Python 3.11 or newer is needed, this is ") and "\n" not in done.stderr[:-1]


def test_missing_tools_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cmake").touch(mode=0o755)
    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupFailed, match=r"needs a C compiler and a C\+\+ compiler: apt-get install build-essential"):
        compiler_version()


def test_setup_needs_nothing_but_the_standard_library() -> None:
    """-S leaves out site-packages: what is imported must come with Python."""
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-m", "deploy.setup", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--dev" in done.stdout


@pytest.mark.parametrize(
    ("script", "shell"), [("deploy/browser.sh", "sh"), ("deploy/gpu.sh", "sh"), (".ci/run", "bash")]
)
def test_shell_scripts_parse_and_can_be_run(script: str, shell: str) -> None:
    assert subprocess.run([shell, "-n", ROOT / script]).returncode == 0
    assert os.access(ROOT / script, os.X_OK)


def test_the_browser_that_is_found_is_printed(tmp_path: Path) -> None:
    (tmp_path / "chromium-headless-shell").touch(mode=0o755)
    done = subprocess.run(
        [ROOT / "deploy/browser.sh"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/chromium-headless-shell\n")


def test_make_lists_its_targets() -> None:
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    for target in ("run", "setup", "test", "test-clients", "test-builds", "test-gpu", "bench", "format", "clean"):
        assert f"make {target}" in listed
