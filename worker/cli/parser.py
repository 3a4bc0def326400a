"""The parser of the command `firsttoken`: its commands and their options."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from worker.auth.scope import Scope
from worker.cli import argument_types
from worker.cli.argument_parser import SETTING_NAMES, Parser, add_settings
from worker.config import VERSION, is_for_engines

SERVE = "worker.serve.serve"  # commands are named by the paths of their functions, which are imported when they run
ENGINE_SETTINGS = frozenset(filter(is_for_engines, SETTING_NAMES))


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

    serve = _command(commands, "serve", SERVE, "start a worker", also=None)
    serve.set_defaults(began=time.monotonic())  # before the imports, which are most of a start

    engine = _command(
        commands,
        "engine",
        "worker.serve_engine.serve_engine",
        "start an engine that several workers share",
        also=ENGINE_SETTINGS,
    )
    engine.set_defaults(began=time.monotonic())
    for each in (serve, engine):  # how `serve --workers` starts them
        each.add_argument("--member", help=argparse.SUPPRESS)

    _command(
        commands,
        "reload",
        "worker.cli.reload_command.reload_models",
        "make the running worker reload models.toml",
        also=("models",),
    )
    doctor = _command(
        commands,
        "doctor",
        "worker.cli.doctor.doctor",
        "check whether this machine can serve with the given settings",
        also=None,
    )
    doctor.add_argument("--json", action="store_true", dest="as_json", help="print the findings as JSON")

    _command(commands, "migrate", "worker.cli.migrate_command.migrate_database", "apply the database migrations")

    of_a_tenant = _add_credentials(commands)
    _add_models(commands)

    grade = _add_canaries(commands)
    agents = _command(
        commands,
        "agents",
        "worker.cli.policies.show_policies",
        "list agents and surfaces, and validate agents.toml",
        also=("targets", "late", "models"),
    )
    agents.add_argument(
        "--keys", action="store_true", dest="with_keys", help="also print the limits of each API key of the tenant"
    )

    goodput = _command(
        commands, "goodput", "worker.cli.goodput_table.show_goodput", "print the share of answers that were on time"
    )
    goodput.add_argument(
        "--by",
        choices=("surface", "tenant", "model", "cache"),
        default="surface",
        help="what to group by (default: surface)",
    )
    goodput.add_argument(
        "--hours", type=argument_types.hours, default=24.0, metavar="N", help="hours to look back (default: 24)"
    )
    goodput.add_argument("--json", action="store_true", dest="as_json", help="print JSON lines")

    cost = _command(commands, "cost", "worker.cli.cost_table.show_cost", "print the usage and the cost of answers")
    cost.add_argument(
        "--by",
        choices=("surface", "model", "agent", "tenant", "key", "conversation", "day", "all"),
        default="surface",
        help="what to group by (default: surface)",
    )
    cost.add_argument(
        "--hours", type=argument_types.hours, default=24.0, metavar="N", help="hours to look back (default: 24)"
    )
    cost.add_argument("--json", action="store_true", dest="as_json", help="print JSON lines")

    ingest = _command(
        commands,
        "ingest",
        "worker.cli.ingest_command.ingest_files",
        "ingest files, folders and web pages into a vector store",
    )
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
        type=argument_types.attribute,
        metavar="KEY=VALUE",
        help="attribute of the files, for search filters; may be repeated",
    )
    ingest.add_argument(
        "--allow-private", action="store_true", help="allow web addresses on this machine and in private networks"
    )
    ingest.add_argument(
        "--store", required=True, metavar="NAME", help="name of the vector store; it is created if it does not exist"
    )
    ingest.add_argument(
        "--embedding-model", metavar="NAME", help="embedding model for a new store (default: the one of --embedder)"
    )

    evaluations = _add_evaluation(commands)

    for command in (*of_a_tenant, agents, ingest, grade, *evaluations):
        command.add_argument("--tenant", default="local", metavar="NAME", help="tenant to act for (default: local)")
    commands.add_parser("version", help="print the version").set_defaults(command="worker.cli.main.show_version")
    return known


def _add_credentials(commands: Any) -> list[argparse.ArgumentParser]:
    """Commands about credentials that work for one tenant."""
    keys = _group(commands, "keys", "create, list and revoke API keys")
    create = _command(keys, "create", "worker.cli.credentials.create_key", "create an API key and print it once")
    create.add_argument("name", metavar="NAME", help="what the key is for")
    create.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        default=[],
        choices=[scope.value for scope in Scope],
        help="scope of the key; may be repeated (default: chat and ingest)",
    )
    create.add_argument("--operator", action="store_true", help="add the scope ops")
    create.add_argument("--days", type=argument_types.positive_int, help="days until the key expires (default: never)")
    create.add_argument(
        "--budget",
        dest="budget",
        action="append",
        default=[],
        type=argument_types.bound,
        metavar="NAME=VALUE",
        help="limit per turn: steps, calls, tokens, seconds, tool_seconds, retrieval_ms or cost; rate limit: "
        "requests_per_minute or tokens_per_minute; limit for all turns of a day: cost_per_day; highest priority class: "
        "class=interactive, standard or batch; may be repeated",
    )
    list_keys = _command(keys, "list", "worker.cli.credentials.list_keys", "list the API keys of a tenant")
    revoke = _command(
        keys,
        "revoke",
        "worker.cli.credentials.revoke_key",
        "revoke an API key; running workers notice within 30 seconds",
    )
    revoke.add_argument("id", metavar="ID", help="id of the key, from `firsttoken keys list`")

    sessions = _group(commands, "sessions", "list signed-in browsers, and sign them out")
    list_sessions = _command(sessions, "list", "worker.cli.credentials.list_sessions", "list signed-in browsers")
    end = _command(
        sessions,
        "revoke",
        "worker.cli.credentials.revoke_session",
        "sign a browser out; running workers notice within 30 seconds",
    )
    end.add_argument("id", metavar="ID", help="id of the session, from `firsttoken sessions list`")

    secret = _group(commands, "secret", "rotate the secret that signs sessions and hashes API keys")
    _command(
        secret,
        "rotate",
        "worker.cli.credentials.rotate_secret",
        "add a new secret; the old one stays valid until it is dropped",
    )
    drop = _command(
        secret, "drop", "worker.cli.credentials.drop_secret", "remove the old secret, and everything that depends on it"
    )
    drop.add_argument("--force", action="store_true", help="drop it even if API keys stop working")

    link = _command(commands, "link", "worker.cli.credentials.show_link", "print a sign-in link for one browser")
    link.add_argument("--url", help="URL of the worker (default: the last one started with this home folder)")

    audit = _command(
        commands,
        "audit",
        "worker.cli.credentials.show_audit",
        "print the audit log of keys, sessions, secrets and stores",
    )
    audit.add_argument(
        "--limit", type=argument_types.positive_int, default=100, metavar="N", help="entries to print (default: 100)"
    )
    audit.add_argument("--json", action="store_true", dest="as_json", help="print JSON lines")
    return [create, list_keys, revoke, list_sessions, end, audit]


def _group(commands: Any, name: str, text: str) -> Any:
    return commands.add_parser(name, help=text).add_subparsers(required=True, metavar="COMMAND")


def _add_models(commands: Any) -> None:
    models = commands.add_parser("models", help="list, inspect, download and quantise models").add_subparsers(
        required=True, metavar="COMMAND"
    )
    listing = _command(
        models, "list", "worker.cli.model_commands.list_models", "list the models on this machine and in the catalogue"
    )
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
        "kv_place",
        "gpu_split",
    )
    info = _command(
        models,
        "info",
        "worker.cli.model_commands.show_model",
        "describe a model and how much memory it needs",
        also=memory,
    )
    info.add_argument("name", metavar="NAME", help="name from `firsttoken models list`, or a GGUF file")
    pull = _command(
        models,
        "pull",
        "worker.cli.model_commands.pull_model",
        "download a model from the hub into the home folder",
        also=("hub",),
    )
    pull.add_argument(
        "name", metavar="NAME", help="name from the catalogue, or a file on the hub as OWNER/REPOSITORY/FILE.gguf"
    )
    pull.add_argument("--sha256", help="expected checksum (default: the one in the catalogue or on the hub)")
    speed = ("threads", "gpu_layers")
    quantize = _command(
        models, "quantize", "worker.cli.quantize.quantize_model", "write a quantised copy of a model", also=speed
    )
    quantize.add_argument("source", metavar="IN", help="name from `firsttoken models list`, or a GGUF file")
    quantize.add_argument("target", metavar="OUT", help="GGUF file to write")
    quantize.add_argument(
        "--type",
        required=True,
        dest="kind",
        metavar="TYPE",
        help="quantisation of the weights: q8_0, q6_k, q5_k_m, q4_k_m, ...",
    )
    quantize.add_argument("--text", metavar="FILE", help="text to compare both models with (default: a model card)")
    kv = _command(
        models,
        "kv",
        "worker.cli.kv_quality.compare_kv",
        "measure the effect of a quantised KV cache on a model",
        also=speed,
    )
    kv.add_argument("name", metavar="NAME", help="name from `firsttoken models list`, or a GGUF file")
    kv.add_argument("--text", metavar="FILE", help="text to compare with (default: a model card)")
    for command in (listing, info, quantize, kv):
        command.add_argument("--json", action="store_true", dest="as_json", help="print JSON")


def _add_canaries(commands: Any) -> argparse.ArgumentParser:
    """The one about canaries that works for one tenant."""
    kinds = commands.add_parser(
        "canary", help="try an agent on a share of another agent's conversations"
    ).add_subparsers(required=True, metavar="COMMAND")
    start = _command(
        kinds,
        "start",
        "worker.cli.canary_commands.start_canary",
        "start a canary: a share of conversations goes to another agent",
    )
    start.add_argument("name", type=argument_types.canary_name, metavar="NAME", help="name of the new canary")
    start.add_argument(
        "--agent",
        default="",
        metavar="AGENT",
        help="agent whose conversations take part (default: conversations without an agent)",
    )
    start.add_argument(
        "--treatment", required=True, metavar="AGENT", help="agent that answers the share of the conversations"
    )
    start.add_argument(
        "--share",
        type=argument_types.part,
        default=0.1,
        metavar="SHARE",
        help="share of the conversations, from 0 to 1 (default: 0.1)",
    )
    start.add_argument(
        "--margin",
        type=argument_types.margin,
        action="append",
        default=[],
        dest="margins",
        metavar="MEASURE=SHARE",
        help="how much worse the treatment may be before it is rolled back; may be repeated (defaults: failed=0.02, "
        "late=0.05, declined=0.05, first_token=0.05, pace=0.05, tokens=0.1, cost=0.05, thumbs_down=0.1, graded=0.1)",
    )
    status = _command(
        kinds, "status", "worker.cli.canary_commands.show_canaries", "compare both agents, and recommend what to do"
    )
    status.add_argument("name", metavar="NAME", nargs="?", help="the canary (default: all that are running)")
    status.add_argument("--json", action="store_true", dest="as_json", help="print JSON lines")
    grade = _command(
        kinds, "grade", "worker.cli.grade_command.grade_canary", "let a model judge stored answers of both agents"
    )
    grade.add_argument("name", metavar="NAME", help="the canary")
    grade.add_argument(
        "--judge",
        required=True,
        metavar="SIDE",
        help="judge model: a model with settings of `firsttoken serve` in quotes, or NAME@URL of a server",
    )
    grade.add_argument(
        "--judge-key-file", type=Path, dest="key_file", metavar="FILE", help="file with the API key of that server"
    )
    grade.add_argument(
        "--limit",
        type=argument_types.positive_int,
        default=50,
        metavar="N",
        help="number of newest answers, half from each agent (default: 50)",
    )
    grade.add_argument(
        "--criterion", metavar="TEXT", help="what a correct answer does (default: it does what was asked)"
    )
    promote = _command(
        kinds, "promote", "worker.cli.canary_commands.promote_canary", "let the treatment answer all conversations"
    )
    abort = _command(
        kinds,
        "abort",
        "worker.cli.canary_commands.abort_canary",
        "end the canary: the original agent answers all conversations again",
    )
    for each in (promote, abort):
        each.add_argument("name", metavar="NAME", help="the canary")
    return grade


def _add_evaluation(commands: Any) -> tuple[argparse.ArgumentParser, ...]:
    """Evaluation commands that work for one tenant."""
    kinds = commands.add_parser("eval", help="measure the quality of answers and of retrieval").add_subparsers(
        required=True, metavar="COMMAND"
    )
    _add_suite(kinds)
    _add_route(kinds)
    _add_cache(kinds)
    retrieval = _command(
        kinds,
        "retrieval",
        "worker.cli.evaluate.evaluate_retrieval",
        "measure how well a vector store finds known answers",
    )
    retrieval.add_argument("--store", required=True, metavar="NAME", help="name of the vector store")
    retrieval.add_argument(
        "--questions",
        required=True,
        metavar="FILE",
        help='JSON Lines with the location of each answer: {"question": ..., "file": ..., "text": ...}',
    )
    retrieval.add_argument(
        "--limit", type=int, default=5, metavar="N", help="number of passages that the model gets (default: 5)"
    )
    retrieval.add_argument(
        "--score-threshold",
        type=float,
        default=0.0,
        metavar="SCORE",
        help="minimum score of a passage (default: 0)",
    )
    retrieval.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    cases = _command(
        kinds,
        "cases",
        "worker.cli.stored_cases_command.write_cases",
        "print stored answers of a tenant as evaluation cases, redacted",
    )
    cases.add_argument(
        "--rated", choices=("up", "down", "any"), default="up", help="rating of the answers (default: up)"
    )
    cases.add_argument(
        "--limit",
        type=argument_types.positive_int,
        default=100,
        metavar="N",
        help="number of newest answers (default: 100)",
    )
    cases.add_argument(
        "--judged",
        action="store_true",
        help="let a judge model decide whether a new answer says the same (see eval suite --judge)",
    )
    return retrieval, cases, *_add_stored(kinds)


def _add_stored(kinds: Any) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    export = _command(
        kinds,
        "export",
        "worker.cli.stored_cases_command.export_answers",
        "print accepted answers of a tenant as fine-tuning data, redacted",
    )
    export.add_argument(
        "--accepted",
        dest="why",
        action="append",
        default=[],
        choices=("up", "canary", "escalated"),
        help="up: rated up; canary: by the winner of a canary; escalated: by the large model of a cascade; may be "
        "repeated (default: all)",
    )
    export.add_argument(
        "--limit",
        type=argument_types.positive_int,
        default=1000,
        metavar="N",
        help="number of newest answers (default: 1000)",
    )
    again = _command(
        kinds,
        "replay",
        "worker.cli.stored_cases_command.replay",
        "send stored turns of a tenant to another configuration",
    )
    again.add_argument(
        "--model",
        dest="candidate",
        required=True,
        metavar="SIDE",
        help="a model with settings of `firsttoken serve` in quotes, or NAME@URL of a server",
    )
    again.add_argument(
        "--model-key-file", type=Path, dest="key_file", metavar="FILE", help="file with the API key of that server"
    )
    again.add_argument(
        "--rated", choices=("up", "down", "any"), default="any", help="rating of the answers (default: any)"
    )
    again.add_argument(
        "--limit",
        type=argument_types.positive_int,
        default=50,
        metavar="N",
        help="number of newest answers (default: 50)",
    )
    again.add_argument(
        "--at-once",
        type=argument_types.at_once,
        default=1,
        metavar="N",
        help="concurrent turns; for meaningful latencies use 1 (default: 1)",
    )
    again.add_argument("--json", type=Path, dest="json_file", metavar="FILE", help="write all turns as JSON")
    again.add_argument(
        "--report", type=Path, metavar="FILE", help="write a Markdown report with both answers side by side"
    )
    return export, again


def _add_suite(kinds: Any) -> None:
    suite = _command(
        kinds,
        "suite",
        "worker.cli.suite_command.evaluate_suite",
        "run the same cases on two configurations; fail if --model is worse",
    )
    suite.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cases, as JSON Lines or TOML")
    form = "a model with settings of `firsttoken serve` in quotes, or NAME@URL of a server"
    suite.add_argument("--model", dest="candidate", required=True, metavar="SIDE", help=f"the candidate: {form}")
    suite.add_argument(
        "--against", metavar="SIDE", help="the baseline: in the same form, or the --json file of an earlier run"
    )
    suite.add_argument("--judge", metavar="SIDE", help="judge model, for cases that need one")
    for place, option in enumerate(("--model", "--against", "--judge")):
        suite.add_argument(
            f"{option}-key-file",
            dest="key_files",
            action=_Placed,
            place=place,
            default=(None, None, None),
            type=Path,
            metavar="FILE",
            help=f"file with the API key of the server in {option}",
        )
    suite.add_argument(
        "--margin",
        type=argument_types.share,
        default=0.05,
        metavar="SCORE",
        help="how much lower the mean score may be, from 0 to 1 (default: 0.05)",
    )
    suite.add_argument(
        "--slower",
        type=argument_types.share,
        metavar="SHARE",
        help="also fail if the first token comes later by more than this share (default: only report latencies)",
    )
    suite.add_argument(
        "--at-once",
        type=argument_types.at_once,
        default=1,
        metavar="N",
        help="concurrent cases; for meaningful latencies use 1 (default: 1)",
    )
    suite.add_argument("--json", type=Path, dest="json_file", metavar="FILE", help="write the run as JSON")
    suite.add_argument("--report", type=Path, metavar="FILE", help="write a Markdown report, with a chart beside it")


def _add_cache(kinds: Any) -> None:
    cache = _command(
        kinds,
        "cache",
        "worker.cli.cache_command.evaluate_cache",
        "choose the similarity threshold of the semantic cache",
    )
    cache.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="cases, some of which expect the same answer"
    )
    cache.add_argument(
        "--wrong",
        type=argument_types.share,
        default=0.02,
        metavar="SHARE",
        help="share of the hits that may be wrong (default: 0.02)",
    )
    cache.add_argument("--json", action="store_true", dest="as_json", help="print JSON")


def _add_route(kinds: Any) -> None:
    route = _command(
        kinds,
        "route",
        "worker.cli.route_command.evaluate_route",
        "choose the thresholds of a cascade from cases",
        also=("models",),
    )
    route.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cases, as for `firsttoken eval suite`")
    route.add_argument("--route", metavar="NAME", help="the cascade in models.toml (default: the only one)")
    route.add_argument(
        "--keep",
        type=argument_types.share,
        default=0.95,
        metavar="SHARE",
        help="share of the quality gap between both models that the cascade must close (default: 0.95)",
    )
    route.add_argument("--judge", metavar="SIDE", help="judge model, for cases that need one")
    route.add_argument(
        "--judge-key-file", type=Path, dest="key_file", metavar="FILE", help="file with the API key of that server"
    )
    route.add_argument(
        "--at-once",
        type=argument_types.at_once,
        default=1,
        metavar="N",
        help="concurrent cases; for meaningful latencies use 1 (default: 1)",
    )
    route.add_argument("--json", type=Path, dest="json_file", metavar="FILE", help="write the curve as JSON")
    route.add_argument("--report", type=Path, metavar="FILE", help="write a Markdown report, with a chart beside it")
    route.add_argument(
        "--policy",
        type=Path,
        dest="policy_file",
        metavar="FILE",
        help="file for the route, to paste into models.toml (default: print it)",
    )


class _Placed(argparse.Action):
    """One of several values that have an option each."""

    def __init__(self, *args: Any, place: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._place = place

    def __call__(self, parser: Any, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        values = list(getattr(namespace, self.dest))
        values[self._place] = value
        setattr(namespace, self.dest, tuple(values))


def _command(
    parent: Any, name: str, function: str, text: str, *, also: Collection[str] | None = ()
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = parent.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(command=function)
    add_settings(parser, also=also)
    return parser
