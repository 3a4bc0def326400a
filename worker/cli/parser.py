"""The parser of the command `firsttoken`: its commands and their options."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeAlias

from worker.auth.scope import Scope
from worker.cli.arguments import (
    SETTING_NAMES,
    Parser,
    add_settings,
    attribute,
    bound,
    canary_name,
    margin,
    number,
    part,
    share,
)
from worker.config import VERSION, settings

# Commands are named by the paths of their functions, which are imported when they run.
SERVE, ENGINE = "worker.serve.serve", "worker.serve_engine.serve_engine"
ENGINE_SETTINGS = frozenset(each.name for each in settings() if each.is_for_engines)
MEMORY_SETTINGS = frozenset(
    {"lora", "draft", "context", "streams", "resident", "parked_mb", "kv_type", "kv_windows"}
    | {"memory_mb", "gpu_layers", "kv_place", "gpu_split"}
)
SPEED_SETTINGS = frozenset({"threads", "gpu_layers"})
COUNT_MAX = 36_500  # days of a century; more entries than anybody reads
SIDE = "a model with settings of `firsttoken serve` in quotes, or NAME@URL of a server"

Option: TypeAlias = tuple[str, dict[str, Any]]


def _option(name: str, help: str, **given: Any) -> Option:
    """As for `add_argument`; the help names a default that can be written down."""
    default = given.get("default")
    shown = f"{default:g}" if isinstance(default, float) else default
    return name, {"help": f"{help} (default: {shown})" if shown else help, **given}


def _switch(name: str, help: str, **given: Any) -> Option:
    return name, {"help": help, "action": "store_true", **given}


def _repeated(name: str, help: str, **given: Any) -> Option:
    return name, {"help": help, "action": "append", **given}


def _count(name: str, default: int | None, help: str, most: int = COUNT_MAX) -> Option:
    return _option(name, help, type=number(1, most, int), default=default, metavar="N")


def _file(name: str, help: str, **given: Any) -> Option:
    return _option(name, help, type=Path, metavar="FILE", **given)


def _json(what: str = "JSON") -> Option:
    return _switch("--json", f"print {what}", dest="as_json")


TENANT = _option("--tenant", "tenant to act for", default="local", metavar="NAME")
HOURS = _option("--hours", "hours to look back", type=number(0.01, 24 * 365), default=24.0, metavar="N")
MODEL_NAME = "name from `firsttoken models list`, or a GGUF file"


def parser() -> Parser:
    """Settings that are not given are absent from the namespace."""
    known = Parser(
        prog="firsttoken",
        description="Streaming chat agents in one process, from the socket to the token.",
        epilog="`firsttoken COMMAND --help` describes a command and its settings; `firsttoken serve --help` lists all "
        "settings. Each setting is a flag and an environment variable: --port is FIRSTTOKEN_PORT.",
    )
    known.add_argument("--version", action="version", version=f"firsttoken {VERSION}")
    commands = known.add_subparsers(required=True, metavar="COMMAND")
    _add_servers(commands)
    _add_credentials(commands)
    _add_models(commands)
    _add_canaries(commands)
    _command(
        commands,
        "agents",
        "worker.cli.policies.show_policies",
        "list agents and surfaces, and validate agents.toml",
        _switch("--keys", "also print the limits of each API key of the tenant", dest="with_keys"),
        TENANT,
        also={"targets", "late", "models"},
    )
    for name, by, function, text in (
        ("goodput", "tenant model cache", "show_goodput", "print the share of answers that were on time"),
        (
            "cost",
            "model agent tenant key conversation day all",
            "show_cost",
            "print the usage and the cost of answers",
        ),
    ):
        grouped = _option("--by", "what to group by", choices=("surface", *by.split()), default="surface")
        _command(commands, name, f"worker.cli.usage_tables.{function}", text, grouped, HOURS, _json("JSON lines"))
    _add_ingest(commands)
    _add_evaluation(commands)
    _described(commands, "version", "print the version").set_defaults(command="worker.cli.main.show_version")
    return known


def _add_servers(commands: Any) -> None:
    member = ("--member", {"help": argparse.SUPPRESS})  # how `serve --workers` starts them
    serve = _command(commands, "serve", SERVE, "start a worker", member, also=SETTING_NAMES)
    engine = _command(
        commands,
        "engine",
        ENGINE,
        "start an engine that several workers share",
        member,
        also=ENGINE_SETTINGS,
        example="engine --model qwen3-4b --listen 10.0.0.5:9000 --token-file engines.token",
    )
    for each in (serve, engine):
        each.set_defaults(began=time.monotonic())  # before the imports, which are most of a start
    upkeep = "worker.cli.upkeep"
    text = "make the running worker reload models.toml"
    _command(commands, "reload", f"{upkeep}.reload_models", text, also={"models"})
    text = "check whether this machine can serve with the given settings"
    _command(commands, "doctor", "worker.cli.upkeep.doctor", text, _json("the findings as JSON"), also=SETTING_NAMES)
    _command(commands, "migrate", f"{upkeep}.migrate_database", "apply the database migrations")


def _add_credentials(commands: Any) -> None:
    where = "worker.cli.credentials"
    keys = _group(commands, "keys", "create, list and revoke API keys")
    _command(
        keys,
        "create",
        f"{where}.create_key",
        "create an API key and print it once",
        _option("name", "what the key is for", metavar="NAME"),
        _repeated(
            "--scope",
            "scope of the key; may be repeated (default: chat and ingest)",
            dest="scopes",
            default=[],
            choices=[scope.value for scope in Scope],
        ),
        _switch("--operator", "add the scope ops"),
        _option("--days", "days until the key expires (default: never)", type=number(1, COUNT_MAX, int)),
        _repeated(
            "--budget",
            "limit per turn: steps, calls, tokens, seconds, tool_seconds, retrieval_ms or cost; rate limit: "
            "requests_per_minute or tokens_per_minute; limit for all turns of a day: cost_per_day; highest priority "
            "class: class=interactive, standard or batch; mcp_origins of the servers that requests may name; may be "
            "repeated",
            default=[],
            type=bound,
            metavar="NAME=VALUE",
        ),
        TENANT,
        example="keys create phone-app --days 90 --budget requests_per_minute=60 --budget tokens=2000",
    )
    _command(keys, "list", f"{where}.list_keys", "list the API keys of a tenant", TENANT)
    within = "running workers notice within 30 seconds"
    id = _option("id", "id of the key, from `firsttoken keys list`", metavar="ID")
    _command(keys, "revoke", f"{where}.revoke_key", f"revoke an API key; {within}", id, TENANT)

    sessions = _group(commands, "sessions", "list signed-in browsers, and sign them out")
    _command(sessions, "list", f"{where}.list_sessions", "list signed-in browsers", TENANT)
    id = _option("id", "id of the session, from `firsttoken sessions list`", metavar="ID")
    _command(sessions, "revoke", f"{where}.revoke_session", f"sign a browser out; {within}", id, TENANT)

    secret = _group(commands, "secret", "rotate the secret that signs sessions and hashes API keys")
    text = "add a new secret; the old one stays valid until it is dropped"
    _command(secret, "rotate", f"{where}.rotate_secret", text)
    force = _switch("--force", "drop it even if API keys stop working")
    text = "remove the old secret, and everything that depends on it"
    _command(secret, "drop", f"{where}.drop_secret", text, force)

    url = _option("--url", "URL of the worker (default: the last one started with this home folder)")
    _command(commands, "link", f"{where}.show_link", "print a sign-in link for one browser", url)
    entries = _count("--limit", 100, "entries to print")
    text = "print the audit log of keys, sessions, secrets and stores"
    _command(commands, "audit", f"{where}.show_audit", text, entries, _json("JSON lines"), TENANT)


def _add_models(commands: Any) -> None:
    models = _group(commands, "models", "list, inspect, download and quantise models")
    where = "worker.cli.model_commands"
    name = _option("name", MODEL_NAME, metavar="NAME")
    text = "list the models on this machine and in the catalogue"
    _command(models, "list", f"{where}.list_models", text, _json())
    text = "describe a model and how much memory it needs"
    _command(models, "info", f"{where}.show_model", text, name, _json(), also=MEMORY_SETTINGS)
    _command(
        models,
        "pull",
        f"{where}.pull_model",
        "download a model into the home folder",
        _option("name", "name from the catalogue, or a file on the hub as OWNER/REPOSITORY/FILE.gguf", metavar="NAME"),
        _option("--sha256", "expected checksum (default: the one in the catalogue or on the hub)"),
        also={"hub", "weights"},
    )
    _command(
        models,
        "quantize",
        f"{where}.quantize_model",
        "write a quantised copy of a model",
        _option("source", MODEL_NAME, metavar="IN"),
        _option("target", "GGUF file to write", metavar="OUT"),
        _option(
            "--type",
            "quantisation of the weights: q8_0, q6_k, q5_k_m, q4_k_m, ...",
            required=True,
            dest="kind",
            metavar="TYPE",
        ),
        _option("--text", "text to compare both models with (default: a model card)", metavar="FILE"),
        _json(),
        also=SPEED_SETTINGS,
        example="models quantize model-f16.gguf model-q4_k_m.gguf --type q4_k_m",
    )
    compared = _option("--text", "text to compare with (default: a model card)", metavar="FILE")
    text = "measure the effect of a quantised KV cache on a model"
    _command(models, "kv", f"{where}.compare_kv", text, name, compared, _json(), also=SPEED_SETTINGS)


def _add_canaries(commands: Any) -> None:
    canary = _group(commands, "canary", "try an agent on a share of another agent's conversations")
    where = "worker.cli.canary_commands"
    name = _option("name", "the canary", metavar="NAME")
    _command(
        canary,
        "start",
        f"{where}.start_canary",
        "start a canary: a share of conversations goes to another agent",
        _option("name", "name of the new canary", type=canary_name, metavar="NAME"),
        _option(
            "--agent",
            "agent whose conversations take part (default: conversations without an agent)",
            default="",
            metavar="AGENT",
        ),
        _option("--treatment", "agent that answers the share of the conversations", required=True, metavar="AGENT"),
        _option("--share", "share of the conversations, from 0 to 1", type=part, default=0.1, metavar="SHARE"),
        _repeated(
            "--margin",
            "how much worse the treatment may be before it is rolled back; may be repeated (defaults: failed=0.02, "
            "late=0.05, declined=0.05, first_token=0.05, pace=0.05, tokens=0.1, cost=0.05, thumbs_down=0.1, "
            "graded=0.1)",
            type=margin,
            default=[],
            dest="margins",
            metavar="MEASURE=SHARE",
        ),
        example="canary start brief-1 --agent support --treatment support-brief --share 0.1",
    )
    which = _option("name", "the canary (default: all that are running)", metavar="NAME", nargs="?")
    text = "compare both agents, and recommend what to do"
    _command(canary, "status", f"{where}.show_canaries", text, which, _json("JSON lines"))
    _command(
        canary,
        "grade",
        f"{where}.grade_canary",
        "let a model judge stored answers of both agents",
        name,
        _option("--judge", f"judge model: {SIDE}", required=True, metavar="SIDE"),
        _file("--judge-key-file", "file with the API key of that server", dest="key_file"),
        _count("--limit", 50, "number of newest answers, half from each agent"),
        _option("--criterion", "what a correct answer does (default: it does what was asked)", metavar="TEXT"),
        TENANT,
        example="canary grade brief-1 --judge best@http://there:8000/v1",
    )
    _command(canary, "promote", f"{where}.promote_canary", "let the treatment answer all conversations", name)
    text = "end the canary: the original agent answers all conversations again"
    _command(canary, "abort", f"{where}.abort_canary", text, name)


def _add_ingest(commands: Any) -> None:
    _command(
        commands,
        "ingest",
        "worker.cli.ingest_command.ingest_files",
        "ingest files, folders and web pages into a vector store",
        _option(
            "paths",
            "files (Markdown, text, HTML, PDF, DOCX, CSV, source code), folders of them, or web addresses",
            nargs="+",
            metavar="PATH",
        ),
        _repeated(
            "--attribute",
            "attribute of the files, for search filters; may be repeated",
            dest="attributes",
            type=attribute,
            metavar="KEY=VALUE",
        ),
        _switch("--allow-private", "allow web addresses on this machine and in private networks"),
        _option(
            "--store", "name of the vector store; it is created if it does not exist", required=True, metavar="NAME"
        ),
        _option(
            "--embedding-model", "embedding model for a new store (default: the one of --embedder)", metavar="NAME"
        ),
        TENANT,
        example="ingest ~/notes https://example.org/manual --store notes --attribute year=2026",
    )


def _add_evaluation(commands: Any) -> None:
    kinds = _group(commands, "eval", "measure the quality of answers and of retrieval")
    _add_suite(kinds)
    _command(
        kinds,
        "retrieval",
        "worker.cli.evaluate.evaluate_retrieval",
        "measure how well a vector store finds known answers",
        _option("--store", "name of the vector store", required=True, metavar="NAME"),
        _option(
            "--questions",
            'JSON Lines with the location of each answer: {"question": ..., "file": ..., "text": ...}',
            required=True,
            metavar="FILE",
        ),
        _option("--limit", "number of passages that the model gets", type=int, default=5, metavar="N"),
        _option("--score-threshold", "minimum score of a passage", type=float, default=0.0, metavar="SCORE"),
        _json(),
        TENANT,
        example="eval retrieval --store notes --questions questions.jsonl",
    )
    _add_stored(kinds)


def _add_stored(kinds: Any) -> None:
    """Commands about stored answers of a tenant."""
    where = "worker.cli.eval_commands"
    _command(
        kinds,
        "cases",
        f"{where}.write_cases",
        "print stored answers of a tenant as evaluation cases, redacted",
        _option("--rated", "rating of the answers", choices=("up", "down", "any"), default="up"),
        _count("--limit", 100, "number of newest answers"),
        _switch("--judged", "let a judge model decide whether a new answer says the same (see eval suite --judge)"),
        TENANT,
    )
    _command(
        kinds,
        "export",
        f"{where}.export_answers",
        "print accepted answers of a tenant as fine-tuning data, redacted",
        _repeated(
            "--accepted",
            "up: rated up; canary: by the winner of a canary; escalated: by the large model of a cascade; may be "
            "repeated (default: all)",
            dest="why",
            default=[],
            choices=("up", "canary", "escalated"),
        ),
        _count("--limit", 1000, "number of newest answers"),
        TENANT,
    )


def _add_suite(kinds: Any) -> None:
    sides = ("--model", "--against", "--judge")
    _command(
        kinds,
        "suite",
        "worker.cli.eval_commands.evaluate_suite",
        "run the same cases on two configurations; fail if --model is worse",
        _file("files", "cases, as JSON Lines or TOML", nargs="+"),
        _option("--model", f"the candidate: {SIDE}", dest="candidate", required=True, metavar="SIDE"),
        _option("--against", "the baseline: in the same form, or the --json file of an earlier run", metavar="SIDE"),
        _option("--judge", "judge model, for cases that need one", metavar="SIDE"),
        *(
            _file(f"{side}-key-file", f"file with the API key of the server in {side}", dest=f"{side[2:]}_key_file")
            for side in sides
        ),
        _option(
            "--margin",
            "how much lower the mean score may be, from 0 to 1",
            type=share,
            default=0.05,
            metavar="SCORE",
        ),
        _option(
            "--slower",
            "also fail if the first token comes later by more than this share (default: only report latencies)",
            type=share,
            metavar="SHARE",
        ),
        _count("--at-once", 1, "concurrent cases; for meaningful latencies use 1", most=64),
        _file("--json", "write the run as JSON", dest="json_file"),
        _file("--report", "write a Markdown report, with a chart beside it"),
        example='eval suite cases.toml --model "smol-chat --kv-type q8_0" --against smol-chat',
    )


def _group(commands: Any, name: str, text: str) -> Any:
    return _described(commands, name, text).add_subparsers(required=True, metavar="COMMAND")


def _described(parent: Any, name: str, text: str, **given: Any) -> argparse.ArgumentParser:
    described = f"{text[0].upper()}{text[1:]}."
    return parent.add_parser(name, help=text, description=described, **given)  # type: ignore[no-any-return]


def _command(
    parent: Any, name: str, function: str, text: str, *options: Option, also: Collection[str] = (), example: str = ""
) -> argparse.ArgumentParser:
    """`also` are the settings that it takes besides those of every command."""
    parser = _described(parent, name, text, epilog=f"Example: firsttoken {example}" if example else None)
    parser.set_defaults(command=function)
    add_settings(parser, also)
    for option, given in options:
        parser.add_argument(option, **given)
    return parser
