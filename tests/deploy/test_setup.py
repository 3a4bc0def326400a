"""Setting up: when there is nothing to do, whom a failing self-test blames, and what a failing command shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import setup, toolchain
from deploy.commands import Log
from deploy.failure import SetupFailed
from deploy.setup import praise, verdict
from deploy.stamp import Choices, Stamp, choices_of
from deploy.toolchain import Cpu, compiler_version, cuda_compiler, cuda_version, has_nvidia_gpu
from inference.llama import Device
from inference.provisioning.selftest import place

ROOT = Path(__file__).resolve().parents[2]
HOST, GPU = Device("CPU", "Some CPU", False, 1, 1), Device("CUDA0", "Some GPU", True, 1, 1)
CPU = Cpu("x86_64", frozenset({"avx2"}))
STAMP = Stamp.of(Path("/clone"), "dependencies", CPU, Choices(cuda=False, cmake_args=""), dev=False)


def test_an_unchanged_project_has_an_unchanged_stamp(tmp_path: Path) -> None:
    STAMP.write(tmp_path / "setup.json")
    assert Stamp.read(tmp_path / "setup.json") == STAMP


def test_whatever_matters_changes_the_stamp() -> None:
    no = Choices(cuda=False, cmake_args="")
    others = {
        Stamp.of(Path("/moved"), "dependencies", CPU, no, dev=False),
        Stamp.of(Path("/clone"), "dependencies, one more", CPU, no, dev=False),
        Stamp.of(Path("/clone"), "dependencies", Cpu("x86_64", frozenset({"avx512f"})), no, dev=False),
        Stamp.of(Path("/clone"), "dependencies", CPU, replace(no, cuda=True), dev=False),
        Stamp.of(Path("/clone"), "dependencies", CPU, replace(no, cmake_args="-DX=1"), dev=False),
        Stamp.of(Path("/clone"), "dependencies", CPU, no, dev=True),
    }
    assert len(others | {STAMP}) == 7


@pytest.mark.parametrize("content", ["", "{", "[]", '{"place": "older version"}'])
def test_an_unreadable_stamp_is_no_stamp(tmp_path: Path, content: str) -> None:
    (tmp_path / "setup.json").write_text(content)
    assert Stamp.read(tmp_path / "setup.json") is None


def test_a_choice_holds_until_another_is_made() -> None:
    chosen = choices_of({"FIRSTTOKEN_CUDA": "1", "CMAKE_ARGS": "-DX=1"}, None, gpu=False)
    assert chosen == Choices(cuda=True, cmake_args="-DX=1")
    before = replace(STAMP, cuda=True, cmake_args="-DX=1")
    assert choices_of({}, before, gpu=False) == chosen
    no = Choices(cuda=False, cmake_args="")
    assert choices_of({"FIRSTTOKEN_CUDA": "0", "CMAKE_ARGS": ""}, before, gpu=True) == no
    assert choices_of({}, STAMP, gpu=True) == no


@pytest.mark.parametrize("gpu", [True, False])
def test_a_gpu_is_used_where_there_is_one_and_nobody_says_otherwise(gpu: bool) -> None:
    assert choices_of({}, None, gpu=gpu).cuda is gpu
    assert not choices_of({"FIRSTTOKEN_CUDA": "0"}, None, gpu=gpu).cuda


def test_the_compiler_of_the_gpu_need_not_be_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "CUDA_FOLDER", tmp_path / "cuda")
    assert cuda_compiler() is None
    with pytest.raises(SetupFailed, match="needs nvcc"):
        cuda_version()
    compiler = tmp_path / "cuda" / "bin" / "nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.write_text("#!/bin/sh\necho nvcc: NVIDIA\necho Build cuda_12.9\n")
    compiler.chmod(0o755)
    assert (cuda_compiler(), cuda_version()) == (str(compiler), "Build cuda_12.9")


def test_a_gpu_is_there_when_its_driver_lists_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "GPUS_FOLDER", tmp_path / "gpus")
    assert not has_nvidia_gpu()
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    assert has_nvidia_gpu()


@pytest.mark.parametrize(("asked", "builds"), [(None, [True, False]), ("1", [True])])
def test_a_gpu_build_that_fails_leaves_the_cpu_unless_it_was_asked_for(
    asked: str | None, builds: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []

    def install(version: str, cpu: Cpu, choices: Choices, log: Log, *, dev: bool) -> None:
        tried.append(choices.cuda)
        if choices.cuda:
            raise SetupFailed("nvcc does not know this GPU")

    monkeypatch.setattr(setup, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(setup, "_make_environment", lambda **_: None)
    monkeypatch.setattr(setup, "_install_working_wheel", install)
    monkeypatch.setattr(setup, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(setup, "cuda_compiler", lambda: "nvcc")
    monkeypatch.delenv("FIRSTTOKEN_CUDA", raising=False)
    if asked is None:
        setup._set_up(dev=False, force=False)
        stamp = Stamp.read(tmp_path / "setup.json")
        assert stamp is not None and not stamp.cuda
    else:
        monkeypatch.setenv("FIRSTTOKEN_CUDA", asked)
        with pytest.raises(SetupFailed, match="does not know"):
            setup._set_up(dev=False, force=False)
    assert tried == builds


def test_a_passing_self_test_keeps_the_build() -> None:
    assert verdict(0, "") is None


def test_setup_names_the_device_that_the_self_test_computed_on() -> None:
    gpu, cpu = (f"1, 5 and 64 rows agree on {place(found)}" for found in ([GPU, HOST], [HOST]))
    assert praise("native", gpu, cuda=True).endswith(
        "passed its self-test (1, 5 and 64 rows agree on the GPU (Some GPU))"
    )
    assert praise("native", cpu, cuda=False).endswith("passed its self-test (1, 5 and 64 rows agree on the CPU)")


def test_a_build_for_a_gpu_that_found_none_is_not_praised_for_one() -> None:
    said = praise("native", f"1, 5 and 64 rows agree on {place([HOST])}", cuda=True)
    assert (
        "no device was found" in said and "on the CPU" in said and "nvidia-smi" in said and "FIRSTTOKEN_CUDA=0" in said
    )


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


@pytest.mark.parametrize(("script", "shell"), [("deploy/browser.sh", "sh"), (".ci/run", "bash")])
def test_shell_scripts_parse_and_can_be_run(script: str, shell: str) -> None:
    assert subprocess.run([shell, "-n", ROOT / script]).returncode == 0
    assert os.access(ROOT / script, os.X_OK)


def test_the_browser_that_is_found_is_printed(tmp_path: Path) -> None:
    (tmp_path / "chromium").touch(mode=0o755)
    done = subprocess.run(
        [ROOT / "deploy/browser.sh"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/chromium\n")


def test_make_lists_its_targets() -> None:
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    for target in ("run", "setup", "test", "test-builds", "bench", "format", "clean"):
        assert f"make {target}" in listed
