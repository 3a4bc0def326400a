"""What the commands do, and what they print."""

from __future__ import annotations

from pathlib import Path

from inference.errors import InferenceError
from training.bundle import Kind, bundled_template
from training.checkpoint import Checkpoint
from training.parity import Differs, compared_with_llama

FAILURES = (ValueError, OSError, Differs, InferenceError)


def export(checkpoint: Path, target: Path, title: str, kind: Kind, check: bool) -> None:
    trained, template = Checkpoint.load(checkpoint), bundled_template()
    print(f"{trained.parameters / 1e6:.2f} M parameters, step {trained.step}, {trained.seen / 1e6:.2f} M tokens")
    if check:
        print(f"against llama.cpp: {compared_with_llama(trained, template)}")
    trained.bundle(title, template).write(target, kind)
    print(f"{target}: {target.stat().st_size / 1e6:.2f} MB")
