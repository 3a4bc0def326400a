"""What the command `firsttoken` may be told: its commands and their options."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from worker.auth.scope import Scope
from worker.cli import argument_types
from worker.cli.argument_parser import SETTING_NAMES, Parser
from worker.config import VERSION, add_settings, is_for_engines

ENGINE_SETTINGS = frozenset(filter(is_for_engines, SETTING_NAMES))


def parser() -> Parser:
    """Settings that are not given stay out of what it reads."""
    known = Parser(
        prog="firsttoken",
        description="Edge streaming chat agents: one process from the socket to the token.",
        epilog="`firsttoken COMMAND --help` describes a command with its settings, `firsttoken serve --help` all "
        "settings. Each is a flag, and an environment variable: --port is FIRSTTOKEN_PORT.",
    )
    known.add_argument("--version", action="version", version=f"firsttoken {VERSION}")
    commands = known.add_subparsers(required=True, metavar="COMMAND")

    serve = _command(commands, "serve", "serve", "start the worker", also=None)
    serve.set_defaults(began=time.monotonic())  # before the imports, which are most of a start

    engine = _command(commands, "engine", "serve_engine", "start an engine that workers share", also=ENGINE_SETTINGS)
    engine.set_defaults(began=time.monotonic())
    for each in (serve, engine):  # how `serve --workers` starts them
        each.add_argument("--member", help=argparse.SUPPRESS)

    _command(commands, "reload", "reload_models", "have the running worker read models.toml again", also=("models",))
    doctor = _command(
        commands, "doctor", "doctor", "check whether this machine can serve with these settings", also=None
    )
    doctor.add_argument("--json", action="store_true", dest="as_json", help="print the findings as JSON")

    _command(commands, "migrate", "migrate_database", "bring the database up to this version")

    of_a_tenant = _add_credentials(commands)
    _add_models(commands)

    grade = _add_canaries(commands)
    agents = _command(
        commands,
        "agents",
        "show_policies",
        "list agents and surfaces, and check their file",
        also=("targets", "late", "models"),
    )
    agents.add_argument(
        "--keys", action="store_true", dest="with_keys", help="print also what the keys of a tenant get on each surface"
    )

    goodput = _command(commands, "goodput", "show_goodput", "print the share of answers that were in time")
    goodput.add_argument(
        "--by",
        choices=("surface", "tenant", "model", "cache"),
        default="surface",
        help="what each row is of (default: surface)",
    )
    goodput.add_argument(
        "--hours", type=argument_types.hours, default=24.0, metavar="N", help="hours to look back (default: 24)"
    )
    goodput.add_argument("--json", action="store_true", dest="as_json", help="print JSON lines")

    cost = _command(commands, "cost", "show_cost", "print what answers took and cost")
    cost.add_argument(
        "--by",
        choices=("surface", "model", "agent", "tenant", "key", "conversation", "day", "all"),
        default="surface",
        help="what each row is of (default: surface)",
    )
    cost.add_argument(
        "--hours", type=argument_types.hours, default=24.0, metavar="N", help="hours to look back (default: 24)"
    )
    cost.add_argument("--json", action="store_true", dest="as_json", help="print JSON lines")

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
        type=argument_types.attribute,
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

    evaluations = _add_evaluation(commands)

    for command in (*of_a_tenant, agents, ingest, grade, *evaluations):
        command.add_argument("--tenant", default="local", metavar="NAME", help="tenant to work for (default: local)")
    commands.add_parser("version", help="print the version").set_defaults(command="show_version")
    return known


def _add_credentials(commands: Any) -> list[argparse.ArgumentParser]:
    """Those of the commands that work for one tenant."""
    keys = _group(commands, "keys", "create, list and revoke API keys")
    create = _command(keys, "create", "create_key", "create an API key and print it once")
    create.add_argument("name", metavar="NAME", help="what the key is for")
    create.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        default=[],
        choices=[scope.value for scope in Scope],
        help="what the key may be used for; may be repeated (default: chat and ingest)",
    )
    create.add_argument("--operator", action="store_true", help="the scope ops in addition to the others")
    create.add_argument("--days", type=argument_types.positive_int, help="days until the key expires (default: never)")
    create.add_argument(
        "--budget",
        dest="budget",
        action="append",
        default=[],
        type=argument_types.bound,
        metavar="NAME=VALUE",
        help="limit for each turn: steps, calls, tokens, seconds, tool_seconds, retrieval_ms or cost; a rate: "
        "requests_per_minute or tokens_per_minute; cost_per_day, of all its turns together; or the best class of its "
        "turns: class=interactive, standard or batch; may be repeated",
    )
    list_keys = _command(keys, "list", "list_keys", "list the keys of a tenant")
    revoke = _command(keys, "revoke", "revoke_key", "revoke a key; running workers notice within half a minute")
    revoke.add_argument("id", metavar="ID", help="identifier of the key, as `firsttoken keys list` prints it")

    sessions = _group(commands, "sessions", "list and revoke the sessions of browsers")
    list_sessions = _command(sessions, "list", "list_sessions", "list the browsers that are signed in")
    end = _command(sessions, "revoke", "revoke_session", "sign a browser out; workers notice within half a minute")
    end.add_argument("id", metavar="ID", help="identifier of the session, as `firsttoken sessions list` prints it")

    secret = _group(commands, "secret", "change the secret that signs sessions and hashes API keys")
    _command(
        secret, "rotate", "rotate_secret", "make a new secret; what the old one made stays valid until it is dropped"
    )
    drop = _command(secret, "drop", "drop_secret", "let go of the old secret, and of what only it opens")
    drop.add_argument("--force", action="store_true", help="even though API keys stop working with it")

    link = _command(commands, "link", "show_link", "print a link that signs one browser in")
    link.add_argument("--url", help="URL of the worker (default: the one that started last with this home folder)")

    audit = _command(commands, "audit", "show_audit", "print what was done to keys, sessions, secrets and stores")
    audit.add_argument(
        "--limit", type=argument_types.positive_int, default=100, metavar="N", help="entries to print (default: 100)"
    )
    audit.add_argument("--json", action="store_true", dest="as_json", help="print JSON lines")
    return [create, list_keys, revoke, list_sessions, end, audit]


def _group(commands: Any, name: str, text: str) -> Any:
    return commands.add_parser(name, help=text).add_subparsers(required=True, metavar="COMMAND")


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
        "kv_place",
        "gpu_split",
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
    kv = _command(models, "kv", "compare_kv", "measure what smaller keys and values do to a model", also=speed)
    kv.add_argument("name", metavar="NAME", help="name from `firsttoken models list`, or a GGUF file")
    kv.add_argument("--text", metavar="FILE", help="text to compare on (default: a model card)")
    for command in (listing, info, quantize, kv):
        command.add_argument("--json", action="store_true", dest="as_json", help="print JSON")


def _add_canaries(commands: Any) -> argparse.ArgumentParser:
    """The one that works for one tenant."""
    kinds = commands.add_parser("canary", help="try an agent on a share of another's conversations").add_subparsers(
        required=True, metavar="COMMAND"
    )
    start = _command(kinds, "start", "start_canary", "begin to answer a share of conversations by another agent")
    start.add_argument("name", type=argument_types.canary_name, metavar="NAME", help="a new name for this trial")
    start.add_argument("--agent", default="", metavar="AGENT", help="whose conversations (default: those of no agent)")
    start.add_argument("--treatment", required=True, metavar="AGENT", help="the agent that answers in its place")
    start.add_argument(
        "--share",
        type=argument_types.part,
        default=0.1,
        metavar="SHARE",
        help="share of the conversations that it answers (default: 0.1)",
    )
    start.add_argument(
        "--margin",
        type=argument_types.margin,
        action="append",
        default=[],
        dest="margins",
        metavar="MEASURE=SHARE",
        help="how much worse the treatment may be: failed=0.02, late=0.05, declined=0.05, first_token=0.05, "
        "pace=0.05, tokens=0.1, cost=0.05, thumbs_down=0.1, graded=0.1 unless set otherwise",
    )
    status = _command(kinds, "status", "show_canaries", "compare both kinds of answers, and say what to do")
    status.add_argument("name", metavar="NAME", nargs="?", help="the trial (default: all that are live)")
    status.add_argument("--json", action="store_true", dest="as_json", help="print JSON lines")
    grade = _command(kinds, "grade", "grade_canary", "have a model judge stored answers of both kinds")
    grade.add_argument("name", metavar="NAME", help="the trial")
    grade.add_argument(
        "--judge",
        required=True,
        metavar="SIDE",
        help="the model that judges: with settings of `firsttoken serve` in quotes, or NAME@URL of a server",
    )
    grade.add_argument("--judge-key-file", type=Path, dest="key_file", metavar="FILE", help="API key of that server")
    grade.add_argument(
        "--limit",
        type=argument_types.positive_int,
        default=50,
        metavar="N",
        help="newest answers, half of each (default: 50)",
    )
    grade.add_argument("--criterion", metavar="TEXT", help="what a right answer does (default: it does what was asked)")
    promote = _command(kinds, "promote", "promote_canary", "let the treatment answer all conversations of the agent")
    abort = _command(kinds, "abort", "abort_canary", "let the agent itself answer again")
    for each in (promote, abort):
        each.add_argument("name", metavar="NAME", help="the trial")
    return grade


def _add_evaluation(commands: Any) -> tuple[argparse.ArgumentParser, ...]:
    """Those that work for one tenant."""
    kinds = commands.add_parser("eval", help="measure quality: of answers, and of retrieval").add_subparsers(
        required=True, metavar="COMMAND"
    )
    _add_suite(kinds)
    _add_route(kinds)
    _add_cache(kinds)
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
    cases = _command(kinds, "cases", "write_cases", "print stored answers of a tenant as cases, redacted")
    cases.add_argument("--rated", choices=("up", "down", "any"), default="up", help="rating (default: up)")
    cases.add_argument(
        "--limit", type=argument_types.positive_int, default=100, metavar="N", help="newest answers (default: 100)"
    )
    cases.add_argument(
        "--judged", action="store_true", help="have a model judge whether a new answer says the same (see --judge)"
    )
    return retrieval, cases, *_add_stored(kinds)


def _add_stored(kinds: Any) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    export = _command(kinds, "export", "export_answers", "print accepted answers of a tenant to fine-tune on, redacted")
    export.add_argument(
        "--accepted",
        dest="why",
        action="append",
        default=[],
        choices=("up", "canary", "escalated"),
        help="rated up, of the winner of a canary, or of the model that took over in a cascade; may be repeated "
        "(default: all of them)",
    )
    export.add_argument(
        "--limit", type=argument_types.positive_int, default=1000, metavar="N", help="newest answers (default: 1000)"
    )
    again = _command(kinds, "replay", "replay", "ask stored turns of a tenant again of another configuration")
    again.add_argument(
        "--model",
        dest="candidate",
        required=True,
        metavar="SIDE",
        help="who is asked: a model with settings of `firsttoken serve` in quotes, or NAME@URL of a server",
    )
    again.add_argument("--model-key-file", type=Path, dest="key_file", metavar="FILE", help="API key of that server")
    again.add_argument("--rated", choices=("up", "down", "any"), default="any", help="rating (default: any)")
    again.add_argument(
        "--limit", type=argument_types.positive_int, default=50, metavar="N", help="newest answers (default: 50)"
    )
    again.add_argument(
        "--at-once",
        type=argument_types.at_once,
        default=1,
        metavar="N",
        help="turns asked at once; times need 1 (default: 1)",
    )
    again.add_argument("--json", type=Path, dest="json_file", metavar="FILE", help="write all turns as JSON")
    again.add_argument("--report", type=Path, metavar="FILE", help="write a report in Markdown, side by side")
    return export, again


def _add_suite(kinds: Any) -> None:
    suite = _command(kinds, "suite", "evaluate_suite", "ask cases of two configurations; fails where one is worse")
    suite.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cases, as JSON lines or TOML")
    form = "a model with settings of `firsttoken serve` in quotes, or NAME@URL of a server"
    suite.add_argument("--model", dest="candidate", required=True, metavar="SIDE", help=f"what is examined: {form}")
    suite.add_argument(
        "--against", metavar="SIDE", help="what it is compared with: the same, or the --json file of an earlier run"
    )
    suite.add_argument("--judge", metavar="SIDE", help="the model that judges, for cases that ask for one")
    for place, option in enumerate(("--model", "--against", "--judge")):
        suite.add_argument(
            f"{option}-key-file",
            dest="key_files",
            action=_Placed,
            place=place,
            default=(None, None, None),
            type=Path,
            metavar="FILE",
            help=f"API key of the server that {option} names",
        )
    suite.add_argument(
        "--margin",
        type=argument_types.share,
        default=0.05,
        metavar="SCORE",
        help="by how much the mean score may be lower, from 0 to 1 (default: 0.05)",
    )
    suite.add_argument(
        "--slower",
        type=argument_types.share,
        metavar="SHARE",
        help="also fail where the first token comes later by more than this share (default: times are only told)",
    )
    suite.add_argument(
        "--at-once",
        type=argument_types.at_once,
        default=1,
        metavar="N",
        help="cases asked at once; times need 1 (default: 1)",
    )
    suite.add_argument("--json", type=Path, dest="json_file", metavar="FILE", help="write the run as JSON")
    suite.add_argument(
        "--report", type=Path, metavar="FILE", help="write a report in Markdown, with a picture beside it"
    )


def _add_cache(kinds: Any) -> None:
    cache = _command(
        kinds, "cache", "evaluate_cache", "choose from which similarity of questions answers are given again"
    )
    cache.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cases; some that expect the same")
    cache.add_argument(
        "--wrong",
        type=argument_types.share,
        default=0.02,
        metavar="SHARE",
        help="share of the hits that may be wrong (default: 0.02)",
    )
    cache.add_argument("--json", action="store_true", dest="as_json", help="print JSON")


def _add_route(kinds: Any) -> None:
    route = _command(kinds, "route", "evaluate_route", "choose the thresholds of a cascade by cases", also=("models",))
    route.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cases, as for `firsttoken eval suite`")
    route.add_argument("--route", metavar="NAME", help="the cascade in models.toml (default: the only one)")
    route.add_argument(
        "--keep",
        type=argument_types.share,
        default=0.95,
        metavar="SHARE",
        help="share of the gap in quality between both models that the cascade is to close (default: 0.95)",
    )
    route.add_argument("--judge", metavar="SIDE", help="the model that judges, for cases that ask for one")
    route.add_argument("--judge-key-file", type=Path, dest="key_file", metavar="FILE", help="API key of its server")
    route.add_argument(
        "--at-once",
        type=argument_types.at_once,
        default=1,
        metavar="N",
        help="cases asked at once; times need 1 (default: 1)",
    )
    route.add_argument("--json", type=Path, dest="json_file", metavar="FILE", help="write the curve as JSON")
    route.add_argument(
        "--report", type=Path, metavar="FILE", help="write a report in Markdown, with a picture beside it"
    )
    route.add_argument(
        "--policy", type=Path, dest="policy_file", metavar="FILE", help="write the route for models.toml (else printed)"
    )


class _Placed(argparse.Action):
    """One value of several that are given by options of their own."""

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
