"""`python -m training COMMAND`: how the bundled models are made. What a person can get wrong ends in one line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    options = vars(_parser().parse_args())
    name = options.pop("command")

    # From here on PyTorch is imported; `--help` answers at once, and processes that only make data stay small.
    from training import commands

    try:
        getattr(commands, name)(**options)
    except KeyboardInterrupt:
        return 130
    except commands.FAILURES as error:
        print(f"training: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training", description="Makes the bundled models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_export(commands)
    return parser


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = commands.add_parser("export", help="write a checkpoint as the GGUF file that the platform loads")
    export.set_defaults(command="export")
    export.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint, or another GGUF file")
    export.add_argument("target", type=Path, metavar="FILE.gguf", help="the file to write")
    export.add_argument("--title", default="Demo Chat", help="what the file calls the model (default: %(default)s)")
    export.add_argument("--kind", choices=("q8_0", "f32"), default="q8_0", help="of the weights (default: %(default)s)")
    export.add_argument("--check", action="store_true", help="compare tokens and logits with llama.cpp first")


if __name__ == "__main__":
    sys.exit(main())
