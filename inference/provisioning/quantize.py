"""`python -m inference.provisioning.quantize SOURCE TARGET KIND THREADS`: in a subprocess, as the library may abort."""

from __future__ import annotations

import sys
from pathlib import Path

from inference.errors import InferenceError
from inference.llama import quantize

if __name__ == "__main__":
    source, target, kind, threads = sys.argv[1:]
    try:
        quantize(Path(source), Path(target), kind, threads=int(threads))
    except InferenceError as error:
        sys.exit(str(error))
