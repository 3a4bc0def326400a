"""Runs the tests on several builds of llama.cpp: `make test-builds`, or `.venv/bin/python -m deploy.builds`.

Kernels for different instruction sets add the same numbers in a different order, so a model's output may differ where
two tokens are almost equally likely. No test may depend on that. Each build is compiled once and cached like the one
that setup makes. It goes into a folder of its own that precedes .venv on the import path; .venv is left unchanged.
Other arguments are passed to pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.backend import Backend
from deploy.commands import Log, SetupFailed
from deploy.setup import ENVIRONMENT, PIP_INSTALL, PYTHON, ROOT, Choices, Stamp, alone, cache_folder, wheel_of
from deploy.toolchain import Cpu, this_cpu
from deploy.wheel import COMMON, Recipe, pinned_version, recipes

FOLDER = ROOT / "build" / "builds"
# What llama.cpp's AVX-512 kernels need: the sets of the first server CPUs with AVX-512. The native build of setup uses
# later ones as well.
AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
# x86 without fused multiply-add: sums are rounded and ordered differently than on all CPUs of the last ten years, so a
# CPU that has no more than AVX2 tests another arithmetic as well. SSE4.2 alone is too slow for the limits of the tests.
NO_FMA = ("-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=OFF" for name in ("AVX2", "FMA", "F16C", "BMI2")))
THREADS = (1, 2)
FEATURES = "from inference.llama import build_features as f; print(*(name for name, on in f().items() if on == '1'))"
COUNT = re.compile(r"\d+ (?:passed|failed|errors?|skipped)")
SUMMARY = re.compile(rf"{COUNT.pattern}.* in \d")


@dataclass(frozen=True)
class Result:
    """The result of a test run: pytest's summary and exit status."""

    summary: str
    status: int

    @classmethod
    def of(cls, output: str, status: int) -> Result:
        """`output` has pytest's summary line, unless pytest died before it; the interpreter may warn after it."""
        summaries = [line for line in output.splitlines() if SUMMARY.search(line)]
        summary = ", ".join(COUNT.findall(summaries[-1])) if summaries else f"no result, exit status {status}"
        return cls(f"killed by {signal.Signals(-status).name}" if status < 0 else summary, status)


def builds(cpu: Cpu) -> list[Recipe]:
    """The builds to test, from those for the fewest instructions to those that setup would try first on this CPU. The
    portable one is for AVX2 on x86."""
    *native, portable = recipes(cpu)
    avx = Recipe("AVX", (*COMMON, *NO_FMA))
    avx512 = Recipe("AVX-512", (*COMMON, "-DGGML_NATIVE=OFF", "-DGGML_AVX512=ON"))
    x86 = cpu.machine in ("x86_64", "AMD64")
    return [*[avx] * x86, portable, *[avx512] * (cpu.features >= AVX512), *reversed(native)]


def table(results: Mapping[str, Mapping[int, Result]]) -> Iterator[str]:
    """The lines of a table: one row per build, one column per number of threads."""
    columns = sorted({threads for row in results.values() for threads in row})
    rows = [["build", *map(_threads, columns)]]
    for name, found in results.items():
        rows.append([name, *(found[threads].summary if threads in found else "" for threads in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def main() -> int:
    cpu = this_cpu()
    by_name = {recipe.name: recipe for recipe in builds(cpu)}
    options, pytest_arguments = _parse(sys.argv[1:], list(by_name))
    results: dict[str, dict[int, Result]] = {}
    try:
        check_environment()
        places = {name: unpacked(name, by_name[name], cpu, Backend.CPU) for name in options.build or by_name}
        for name, place in places.items():
            results[name] = {}
            for threads in options.threads or THREADS:
                results[name][threads] = _run(name, place, threads, pytest_arguments)
    except SetupFailed as error:
        print(f"builds: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if results:
            print(*table(results), sep="\n", flush=True)
    return 0 if all(result.status == 0 for row in results.values() for result in row.values()) else 1


def unpacked(name: str, recipe: Recipe, cpu: Cpu, backend: Backend) -> Path:
    """The folder that holds this build of llama_cpp and nothing else; compiled the first time. Raises SetupFailed."""
    place = FOLDER / name.replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    log = Log(place / "build.log")
    version = pinned_version((ROOT / "pyproject.toml").read_text("utf-8"))
    print(f"the {name} build: ", end="", flush=True)
    with alone(cache_folder()):
        wheel = wheel_of(version, recipe, cpu, Choices(backend), log)
    target = ["--no-index", "--no-deps", "--upgrade", "--target", str(place), str(wheel)]
    log.run([*PIP_INSTALL, *target], "The build could not be unpacked")
    features = log.lines_of([str(PYTHON), "-c", FEATURES], "The build cannot be loaded", environment_of(place))
    print("".join(features).strip(), flush=True)
    return place


def _run(name: str, place: Path, threads: int, arguments: Sequence[str]) -> Result:
    path = place / f"{threads}-threads.log"
    began = time.monotonic()
    print(f"the {name} build, {_threads(threads)}: ", end="", flush=True)
    with (
        path.open("wb") as log,
        subprocess.Popen(
            [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=ROOT,
            env={**environment_of(place), "OMP_THREAD_LIMIT": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            status = process.wait()
        except KeyboardInterrupt:  # the tests got the signal too: they stop what they started
            process.wait()
            raise
    result = Result.of(path.read_text(errors="replace"), status)
    print(f"{result.summary} ({(time.monotonic() - began) / 60:.0f} min, {path.relative_to(ROOT)})", flush=True)
    return result


def environment_of(place: Path) -> dict[str, str]:
    """An environment in which this build is imported: PYTHONPATH comes before the packages of .venv."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}


def check_environment() -> None:
    stamp = Stamp.read(ENVIRONMENT / "setup.json")
    if stamp is None or not stamp.dev:
        raise SetupFailed("the tests need what `make setup` installs")


def _parse(arguments: Sequence[str], names: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m deploy.builds", description=__doc__, usage="%(prog)s [options] [pytest arguments]"
    )
    parser.add_argument("--build", action="append", choices=names, help="test only this build; may be repeated")
    parser.add_argument(
        "--threads", action="append", type=int, help="llama.cpp threads; may be repeated (default: 1, then 2)"
    )
    return parser.parse_known_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
