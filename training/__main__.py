"""`python -m training COMMAND`: how the bundled models are made. What a person can get wrong ends in one line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

from inference.attention import AUTO, F16, FLASH, KV_TYPES
from inference.bundled import CHAT_MODEL

FOLDER = Path("artifacts/training")
PROSE = FOLDER / "prose.json"

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


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
    parser = argparse.ArgumentParser(
        prog="python -m training", description="Makes the bundled models; docs/training.md says how."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_prose(commands)
    _add_tokenizer(commands)
    _add_train(commands)
    _add_distil(commands)
    _add_average(commands)
    _add_export(commands)
    _add_evaluate(commands)
    _add_suite(commands)
    return parser


def _add_prose(commands: Commands) -> None:
    prose = commands.add_parser("prose", help="mine sentences from the documentation installed on this machine")
    prose.set_defaults(command="prose")
    _add_target(prose, PROSE)


def _add_tokenizer(commands: Commands) -> None:
    tokenizer = commands.add_parser("tokenizer", help="learn a vocabulary of your own; the bundled one is the default")
    tokenizer.set_defaults(command="tokenizer")
    _add_target(tokenizer, FOLDER / "tokenizer.json")
    _add_mined(tokenizer)
    tokenizer.add_argument("--size", type=int, default=5120, help="tokens (default: %(default)s)")


def _add_train(commands: Commands) -> None:
    train = commands.add_parser("train", help="train the chat model")
    train.set_defaults(command="train")
    _add_target(train, FOLDER / "chat.pt")
    _add_training(train, minutes=60)


def _add_distil(commands: Commands) -> None:
    distil = commands.add_parser("distil", help="train the draft model to imitate the chat model")
    distil.set_defaults(command="train", draft=True)
    _add_target(distil, FOLDER / "draft.pt")
    distil.add_argument(
        "--teacher",
        type=Path,
        default=FOLDER / "chat.pt",
        metavar="FILE",
        help="a checkpoint or GGUF file (default: %(default)s)",
    )
    _add_training(distil, minutes=12)


def _add_training(command: argparse.ArgumentParser, minutes: float) -> None:
    _add_mined(command)
    begin = command.add_mutually_exclusive_group()
    begin.add_argument(
        "--from",
        dest="start",
        type=Path,
        metavar="FILE",
        help="begin with the weights of a checkpoint or GGUF file (default: the bundled model)",
    )
    begin.add_argument("--fresh", action="store_true", help="begin with a model that has learnt nothing")
    begin.add_argument("--resume", dest="resumes", action="store_true", help="go on where the checkpoint stopped")
    command.add_argument("--tokenizer", type=Path, metavar="FILE", help="with --fresh: a vocabulary of your own")
    command.add_argument(
        "--minutes",
        type=float,
        default=minutes,
        help="of training, with those before a resumption (default: %(default)s); a number in FILE's neighbour "
        "that ends in .minutes changes them meanwhile, and 0 ends the training",
    )
    command.add_argument(
        "--accepted", type=Path, metavar="FILE", help="learn these answers too, as `firsttoken eval export` prints them"
    )
    command.add_argument(
        "--accepted-share", type=float, default=0.2, help="of what is learnt, with --accepted (default: %(default)s)"
    )
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    command.add_argument("--processes", type=int, help="that train together (default: 2, or 1 with cuda)")
    command.add_argument("--makers", type=int, help="processes that write conversations, to each that trains")
    command.add_argument("--tokens", type=int, help="of a step and a process (default: 4096, or 65536 with cuda)")
    command.add_argument("--matrix-rate", type=float, default=0.02, help="of learning (default: %(default)s)")
    command.add_argument("--embedding-rate", type=float, default=0.004, help="of learning (default: %(default)s)")
    command.add_argument("--seed", type=int, default=1, help="of what is invented (default: %(default)s)")
    command.add_argument(
        "--no-compile", dest="compiled", action="store_false", help="begin at once and train more slowly"
    )


def _add_average(commands: Commands) -> None:
    average = commands.add_parser("average", help="write what lies between two models, which is often better than both")
    average.set_defaults(command="average")
    average.add_argument("first", type=Path, metavar="FIRST", help="a checkpoint or GGUF file")
    average.add_argument("second", type=Path, metavar="SECOND", help="another one, that the first went on from")
    average.add_argument("target", type=Path, metavar="FILE", help="the checkpoint to write")
    average.add_argument("--share", type=float, default=0.7, help="of the first model's weights (default: %(default)s)")


def _add_export(commands: Commands) -> None:
    export = commands.add_parser("export", help="write a checkpoint as the GGUF file that the platform loads")
    export.set_defaults(command="export")
    export.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint, or another GGUF file")
    export.add_argument("target", type=Path, metavar="FILE.gguf", help="the file to write")
    export.add_argument("--title", default="Demo Chat", help="what the file calls the model (default: %(default)s)")
    export.add_argument("--kind", choices=("q8_0", "f32"), default="q8_0", help="of the weights (default: %(default)s)")
    export.add_argument("--check", action="store_true", help="compare tokens and logits with llama.cpp first")


def _add_evaluate(commands: Commands) -> None:
    evaluate = commands.add_parser("evaluate", help="ask a model what it never saw, with the platform's engine")
    evaluate.set_defaults(command="evaluate")
    evaluate.add_argument("model", nargs="?", type=Path, default=CHAT_MODEL, metavar="FILE.gguf")
    evaluate.add_argument("--draft", type=Path, metavar="FILE.gguf", help="also measure how many drafts are accepted")
    evaluate.add_argument("--cases", dest="count", type=int, default=200, help="of each sort (default: %(default)s)")
    evaluate.add_argument("--seed", default="evaluation", help="of what is invented (default: %(default)s)")
    evaluate.add_argument("--show", dest="shown", type=int, default=0, help="of each sort, so many that went wrong")
    evaluate.add_argument("--free-only", action="store_true", help="not under the grammar of the tools as well")
    evaluate.add_argument("--kv-type", choices=KV_TYPES, default=F16, help="of keys and values (default: %(default)s)")
    evaluate.add_argument("--flash-attention", choices=(AUTO, *FLASH), default=AUTO, help="default: %(default)s")
    _add_mined(evaluate)


def _add_suite(commands: Commands) -> None:
    suite = commands.add_parser("suite", help="write what `evaluate` asks as cases for `firsttoken eval suite`")
    suite.set_defaults(command="suite")
    _add_target(suite, FOLDER / "suite.jsonl")
    suite.add_argument("--cases", dest="count", type=int, default=20, help="of each sort (default: %(default)s)")
    suite.add_argument("--seed", default="evaluation", help="of what is invented (default: %(default)s)")
    _add_mined(suite)


def _add_target(command: argparse.ArgumentParser, default: Path) -> None:
    command.add_argument(
        "target", nargs="?", type=Path, default=default, metavar="FILE", help="to write (default: %(default)s)"
    )


def _add_mined(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--prose", type=Path, default=PROSE, metavar="FILE", help="what `prose` mined (default: %(default)s)"
    )


if __name__ == "__main__":
    sys.exit(main())
