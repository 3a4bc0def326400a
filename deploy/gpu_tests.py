"""Runs the tests of the engine on a GPU in software: `make test-gpu`, or `.venv/bin/python -m deploy.gpu_tests`.

llama.cpp's Vulkan backend computes on Mesa's llvmpipe there: slow, and with every line of the GPU's path. The build is
compiled once and cached like the one of setup; it lies in a folder of its own before the packages of .venv, which stays
as it is. `--hardware` leaves the choice of the device to llama.cpp, where there is a real one. Further arguments go to
pytest.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence

from deploy.backend import Backend
from deploy.builds import check_environment, environment_of, unpacked
from deploy.failure import SetupFailed
from deploy.setup import PYTHON, ROOT
from deploy.toolchain import this_cpu
from deploy.wheel import recipes

NAME = "vulkan"
# What computes: the tests for a GPU, and those that hold of every device.
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
# A CPU device is taken when it is asked for by its number only. With kernels fused, Mesa 22.3 crashes in some steps.
SOFTWARE = {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_VK_DISABLE_FUSION": "1"}
TIMEOUT_S = 900  # of a test: a GPU in software compiles shaders for half a minute, and computes as slowly
OPTIONS = ("-m", "not long and not cpu", "--timeout", str(TIMEOUT_S))


def main() -> int:
    options, arguments = _parse(sys.argv[1:])
    try:
        check_environment()
        device = {} if options.hardware else {**SOFTWARE, "VK_ICD_FILENAMES": _software_device()}
        place = unpacked(NAME, recipes(this_cpu())[0], this_cpu(), Backend.VULKAN)
    except SetupFailed as error:
        print(f"gpu_tests: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    named = [argument for argument in arguments if argument.startswith("tests/")]
    command = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", *OPTIONS, *arguments]
    return subprocess.run(
        [*command, *(() if named else TESTS)], cwd=ROOT, env={**environment_of(place), **device}
    ).returncode


def _software_device() -> str:
    """The file that names it. Raises SetupFailed."""
    done = subprocess.run([ROOT / "deploy" / "gpu.sh"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SetupFailed("there is no GPU in software")
    return done.stdout.strip()


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m deploy.gpu_tests",
        description=__doc__,
        usage="%(prog)s [options] [arguments of pytest]",
    )
    parser.add_argument("--hardware", action="store_true", help="on a real GPU")
    return parser.parse_known_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
