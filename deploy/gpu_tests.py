"""Runs the engine tests on a software GPU: `make test-gpu`, or `.venv/bin/python -m deploy.gpu_tests`.

llama.cpp's Vulkan backend then computes on Mesa's llvmpipe: slow, but it executes the whole GPU code path. The build is
compiled once and cached like the one that setup makes. It goes into a folder of its own that precedes .venv on the
import path; .venv is left unchanged. `--hardware` lets llama.cpp choose a real device; `--backend cuda` or `metal`
builds for another backend than Vulkan. Other arguments are passed to pytest.

Each file runs in a process of its own, because llvmpipe may crash in any step and take the process down. On llvmpipe,
tests that failed or did not finish run a second time, and the last lines list the files that needed it. On real
hardware there is no second run.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.backend import Backend
from deploy.builds import Result, check_environment, environment_of, unpacked
from deploy.commands import SetupFailed
from deploy.setup import PYTHON, ROOT
from deploy.toolchain import this_cpu
from deploy.wheel import recipes

# Everything that computes: the tests for a GPU, and those that apply to every device.
TESTS = (
    "tests/gpu",
    "tests/inference/test_model.py",
    "tests/inference/test_attention.py",
    "tests/inference/engine",
    "tests/inference/kvcache",
    "tests/inference/speculative",
    "tests/inference/embedding",
    "tests/inference/llama",
    "tests/inference/remote",
    "tests/worker/engines/test_contract.py",
)
# llama.cpp uses a Vulkan device of type CPU only if it is selected by number. With fused kernels, Mesa 22.3 crashes in
# some steps.
SOFTWARE = {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_VK_DISABLE_FUSION": "1"}
TIMEOUT_S = 900  # per test: a software GPU compiles shaders for half a minute, and computes as slowly
OPTIONS = ("-q", "--timeout", str(TIMEOUT_S))
LEFT_OUT = "not long and not cpu"
NOTHING = 5  # pytest's exit status if there is no test to run
FIRST, AGAIN = "--cache-clear", "--last-failed"  # after a crash no failure is on record, so AGAIN runs all tests


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test file. `second`: the rerun of its failed tests, or of all of them after a crash."""

    first: Result
    second: Result | None = None

    @property
    def passed(self) -> bool:
        return (self.second or self.first).status in (0, NOTHING)

    def __str__(self) -> str:
        return f"{self.first.summary}; again: {self.second.summary}" if self.second else self.first.summary


def main() -> int:
    options, arguments = _parse(sys.argv[1:])
    outcomes: dict[str, Outcome] = {}
    try:
        check_environment()
        hardware = options.hardware or options.backend is not Backend.VULKAN
        device = {} if hardware else {**SOFTWARE, "VK_ICD_FILENAMES": _software_device()}
        place = unpacked(str(options.backend), recipes(this_cpu())[0], this_cpu(), options.backend)
        marks = LEFT_OUT if options.backend is Backend.VULKAN else f"{LEFT_OUT} and not vulkan"
        runner = Runner(place, {**environment_of(place), **device}, ["-m", marks, *arguments])
        for file in files(arguments):
            outcomes[file] = runner.outcome(file, again=not hardware)
    except SetupFailed as error:
        print(f"gpu_tests: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        print(*summary(outcomes), sep="\n", flush=True)
    return 0 if all(outcome.passed for outcome in outcomes.values()) else 1


def files(arguments: Sequence[str]) -> Iterator[str]:
    """The test files that the arguments name as files, folders or single tests; those of TESTS if they name none."""
    for name in [argument for argument in arguments if argument.startswith("tests/")] or TESTS:
        path = ROOT / name
        yield from (
            (str(file.relative_to(ROOT)) for file in sorted(path.rglob("test_*.py"))) if path.is_dir() else [name]
        )


def summary(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """The lines of the summary: the files that did not pass at first, then the number of those that passed."""
    for file, outcome in outcomes.items():
        if outcome.second or not outcome.passed:
            yield f"{file}: {outcome}"
    passed = [outcome for outcome in outcomes.values() if outcome.passed]
    again = sum(outcome.second is not None for outcome in passed)
    if outcomes:
        yield f"{len(passed)} of {len(outcomes)} files passed" + (f", {again} of them in a second run" if again else "")


class Runner:
    """Runs pytest on a build. The logs are kept next to the folder of the build."""

    def __init__(self, place: Path, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        self._logs = place.with_name(f"{place.name}-tests")
        self._logs.mkdir(exist_ok=True)
        self._environment = environment
        self._arguments = [argument for argument in arguments if not argument.startswith("tests/")]

    def outcome(self, file: str, *, again: bool) -> Outcome:
        first = self._run(file, FIRST)
        if again and first.status not in (0, NOTHING):
            return Outcome(first, self._run(file, AGAIN, ".again"))
        return Outcome(first)

    def _run(self, file: str, which: str, run: str = "") -> Result:
        log = self._logs / f"{file.replace('/', '.')}{run}.log"
        began = time.monotonic()
        print(f"{file}: ", end="", flush=True)
        command = [str(PYTHON), "-m", "pytest", "-o", f"cache_dir={self._logs / 'cache'}", which, *OPTIONS]
        with log.open("wb") as output:
            status = subprocess.run(
                [*command, *self._arguments, file],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode
        result = Result.of(log.read_text(errors="replace"), status)
        where = "" if status in (0, NOTHING) else f", {log.relative_to(ROOT)}"
        print(f"{result.summary} ({time.monotonic() - began:.0f} s{where})", flush=True)
        return result


def _software_device() -> str:
    """The path of the software GPU's driver manifest. Raises SetupFailed if there is none."""
    done = subprocess.run([ROOT / "deploy" / "gpu.sh"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SetupFailed("there is no software GPU")
    return done.stdout.strip()


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m deploy.gpu_tests",
        description=__doc__,
        usage="%(prog)s [options] [pytest arguments]",
    )
    parser.add_argument("--hardware", action="store_true", help="use a real GPU")
    parser.add_argument(
        "--backend",
        type=Backend,
        choices=[backend for backend in Backend if backend is not Backend.CPU],
        default=Backend.VULKAN,
        help="backend of llama.cpp (default: vulkan); all others need real hardware",
    )
    return parser.parse_known_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
