"""The command `firsttoken`. A user's mistake ends in one line on stderr, not in a traceback."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import sys
import time
from collections.abc import Collection, Sequence
from typing import Any

from worker.config import VERSION, ConfigError, add_settings, load, prepare_process, settings

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
ATTRIBUTE_KEY_MAX, ATTRIBUTE_VALUE_MAX = 64, 512  # as filters take them
SETTING_NAMES = frozenset(setting.name for setting in settings())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code of the process."""
    prepare_process()
    options = vars(_parser().parse_args(arguments))
    flags = {name: value for name, value in options.items() if name in SETTING_NAMES}
    rest = {name: value for name, value in options.items() if name not in SETTING_NAMES}
    try:
        config = load(flags)
    except ConfigError as error:
        return _fail(error)
    _start_log(config.log_level)

    # From here on models and servers are imported; what is above answers `--help` at once.
    import uvloop

    from worker.cli import commands

    try:
        uvloop.run(getattr(commands, rest.pop("command"))(config, **rest))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED
    except commands.FAILURES as error:
        return _fail(error)
    return 0


def _start_log(level: str) -> None:
    logging.basicConfig(level=level.upper(), format=LOG_FORMAT)
    if level not in ("debug", "info"):
        # What the library cannot do reaches people as an error of ours; its own remarks are for who looks for more.
        logging.getLogger("firsttoken.llama").setLevel(logging.CRITICAL)


def _fail(error: BaseException) -> int:
    print(f"firsttoken: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="firsttoken",
        description="Edge streaming chat agents: one process from the socket to the token.",
        epilog=_settings_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"firsttoken {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = _command(commands, "serve", "serve", "start the worker", also=None)
    serve.set_defaults(began=time.monotonic())  # before the imports, which are most of a start

    doctor = _command(
        commands, "doctor", "doctor", "check whether this machine can serve with these settings", also=None
    )
    doctor.add_argument("--json", action="store_true", dest="as_json", help="print the findings as JSON")

    _command(commands, "migrate", "migrate_database", "bring the database up to this version")

    keys = commands.add_parser("keys", help="create, list and revoke API keys").add_subparsers(
        required=True, metavar="COMMAND"
    )
    create = _command(keys, "create", "create_key", "create an API key and print it once")
    create.add_argument("name", metavar="NAME", help="what the key is for")
    create.add_argument("--operator", action="store_true", help="may see the latencies of all tenants and the metrics")
    create.add_argument("--days", type=_positive_int, help="days until the key expires (default: never)")
    create.add_argument(
        "--budget",
        dest="budget",
        action="append",
        default=[],
        type=_bound,
        metavar="NAME=NUMBER",
        help="limit for each turn: steps, calls, tokens, seconds, tool_seconds or cost; may be repeated",
    )
    listing = _command(keys, "list", "list_keys", "list the keys of a tenant")
    revoke = _command(keys, "revoke", "revoke_key", "revoke a key; running workers notice within half a minute")
    revoke.add_argument("id", metavar="ID", help="identifier of the key, as `firsttoken keys list` prints it")

    _add_models(commands)

    _command(commands, "agents", "list_agents", "list the agents and check their file")

    link = _command(commands, "link", "show_link", "print a link that signs one browser in")

    ingest = _command(commands, "ingest", "ingest_files", "read files and folders into a vector store")
    ingest.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="files (Markdown, text, HTML, PDF, DOCX, CSV, source code), folders of them, or web addresses",
    )
    ingest.add_argument(
        "--attribute",
        dest="attributes",
        action="append",
        type=_attribute,
        metavar="KEY=VALUE",
        help="attribute of the files, for the filters of a search; may be repeated",
    )
    ingest.add_argument(
        "--allow-private", action="store_true", help="allow web addresses of this machine and of private networks"
    )
    ingest.add_argument(
        "--store", required=True, metavar="NAME", help="name of the vector store; it is created if it does not exist"
    )
    ingest.add_argument(
        "--embedding-model", metavar="NAME", help="embedding model of a new store (default: that of --embedder)"
    )

    judge = _add_evaluation(commands)

    for command in (create, listing, revoke, ingest, judge):
        command.add_argument("--tenant", default="local", metavar="NAME", help="tenant to work for (default: local)")
    for command in (link,):
        command.add_argument(
            "--url", help="URL of the worker (default: the one that started last with this home folder)"
        )
    commands.add_parser("version", help="print the version").set_defaults(command="show_version")
    return parser


def _add_models(commands: Any) -> None:
    models = commands.add_parser("models", help="list, inspect, pull and quantise models").add_subparsers(
        required=True, metavar="COMMAND"
    )
    listing = _command(models, "list", "list_models", "list the models on this machine and those that can be pulled")
    memory = (
        "draft",
        "draft_tokens",
        "context",
        "streams",
        "resident",
        "parked_mb",
        "kv_type",
        "memory_mb",
        "gpu_layers",
    )
    info = _command(models, "info", "show_model", "describe a model and the memory that it takes", also=memory)
    info.add_argument("name", metavar="NAME", help="name from `firsttoken models list`, or a GGUF file")
    pull = _command(models, "pull", "pull_model", "download a model from the hub into the home folder", also=("hub",))
    pull.add_argument(
        "name", metavar="NAME", help="name from the catalogue, or a file of the hub as OWNER/REPOSITORY/FILE.gguf"
    )
    pull.add_argument("--sha256", help="checksum that the file must have (default: that of the catalogue or the hub)")
    speed = ("threads", "gpu_layers")
    quantize = _command(models, "quantize", "quantize_model", "write a quantised copy of a model", also=speed)
    quantize.add_argument("source", metavar="IN", help="name from `firsttoken models list`, or a GGUF file")
    quantize.add_argument("target", metavar="OUT", help="GGUF file to write")
    quantize.add_argument(
        "--type",
        required=True,
        dest="kind",
        metavar="TYPE",
        help="type of the weights: q8_0, q6_k, q5_k_m, q4_k_m, ...",
    )
    quantize.add_argument("--text", metavar="FILE", help="text to compare both models on (default: a model card)")
    for command in (listing, info, quantize):
        command.add_argument("--json", action="store_true", dest="as_json", help="print JSON")


def _add_evaluation(commands: Any) -> argparse.ArgumentParser:
    kinds = commands.add_parser("eval", help="measure the quality of retrieval").add_subparsers(
        required=True, metavar="COMMAND"
    )
    retrieval = _command(
        kinds, "retrieval", "evaluate_retrieval", "ask a vector store questions whose answers are known"
    )
    retrieval.add_argument("--store", required=True, metavar="NAME", help="name of the vector store")
    retrieval.add_argument(
        "--questions",
        required=True,
        metavar="FILE",
        help='JSON lines with the place of each answer: {"question": ..., "file": ..., "text": ...}',
    )
    retrieval.add_argument(
        "--limit", type=int, default=5, metavar="N", help="passages to give to the model (default: 5)"
    )
    retrieval.add_argument(
        "--score-threshold",
        type=float,
        default=0.0,
        metavar="SCORE",
        help="lowest score of a passage that is given to the model (default: 0)",
    )
    retrieval.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    return retrieval


def _command(
    parent: Any, name: str, function: str, text: str, *, also: Collection[str] | None = ()
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = parent.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(command=function)
    add_settings(parser, also=also)
    return parser


def _settings_table() -> str:
    rows = [f"  {setting.flag:<20} {setting.help}" for setting in settings()]
    return "\n".join(["settings, each a flag of the command or an environment variable (in brackets):", *rows])


def _attribute(text: str) -> tuple[str, str | int | float | bool]:
    """year=2024 is a number, draft=true is a boolean, everything else is text."""
    key, equals, value = text.partition("=")
    if not equals or not 1 <= len(key) <= ATTRIBUTE_KEY_MAX or not 1 <= len(value) <= ATTRIBUTE_VALUE_MAX:
        raise argparse.ArgumentTypeError(
            f"must be KEY=VALUE, with at most {ATTRIBUTE_KEY_MAX} and {ATTRIBUTE_VALUE_MAX} characters"
        )
    try:
        read = json.loads(value)
    except ValueError:
        return key, value
    return key, read if isinstance(read, bool | int) or (isinstance(read, float) and math.isfinite(read)) else value


def _bound(text: str) -> tuple[str, int | float]:
    """steps=4"""
    name, _, value = text.partition("=")
    try:
        return name, int(value) if value.isdigit() else float(value)
    except ValueError:
        raise argparse.ArgumentTypeError("must be NAME=NUMBER, as in steps=4") from None


def _positive_int(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 36_500:
        raise argparse.ArgumentTypeError("must be a number of days from 1 to 36500")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
