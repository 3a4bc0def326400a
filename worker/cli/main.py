"""The command `firsttoken`. A user's mistake ends in one line on stderr, not in a traceback."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from migrations.embedded.errors import remedy
from worker.cli.arguments import SETTING_NAMES
from worker.cli.early_signals import EXIT_INTERRUPTED, leave_to_loop
from worker.cli.parser import ENGINE, SERVE, parser
from worker.config import VERSION, Config, load, prepare_process, unknown_variables
from worker.errors import StartError
from worker.lifecycle.crew.member import Member
from worker.lifecycle.process import function_at, hangups
from worker.setting import ConfigError

log = logging.getLogger("firsttoken")

CREW = "worker.lifecycle.crew.crew.serve_crew"  # models and servers are for its members: this process stays small
EXIT_FAILED, EXIT_UNREAD = 1, 141
STANDARD_ERROR = 2  # the last of the three descriptors that every process has
LOG_FORMAT = "%(asctime)s %(levelname)-7s {who}%(name)s: %(message)s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code of the process."""
    _open_standard_streams()
    prepare_process()
    if sys.flags.optimize > 1:
        return _fail(
            StartError("docstrings tell models what tools do, and PYTHONOPTIMIZE=2 or -OO removes them: unset it")
        )
    options = vars(parser().parse_args(arguments))
    flags = {name: value for name, value in options.items() if name in SETTING_NAMES}
    rest = {name: value for name, value in options.items() if name not in SETTING_NAMES}
    try:
        config = load(flags)
    except ConfigError as error:
        return _fail(error)
    command, joins = rest.pop("command"), rest.pop("member", None)
    member = Member.join(joins) if joins else None
    _start_log(config.log_level, member)
    if command in (SERVE, ENGINE) and member is None:
        for warning in unknown_variables():
            log.warning("%s", warning)

    try:
        if command == SERVE and config.workers > 1 and member is None:
            command, rest = CREW, {"began": rest["began"], "flags": flags}
        return _run(command, config, {**rest, "member": member} if member else rest, member)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED


def _open_standard_streams() -> None:
    """Whoever starts a daemon may close the three. The next files would get their numbers, and what is printed; libuv
    aborts the process where it is to close one of these numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


async def show_version(config: Config) -> None:
    print(f"firsttoken {VERSION}")


def _run(command: str, config: Config, options: dict[str, Any], member: Member | None) -> int:
    """`command` is the path of its function. Only what it needs is imported, and only now: everything above answers
    `--help` at once."""
    import uvloop

    try:
        running = _stoppable(function_at(command)(config, **options))
        leave_to_loop()
        uvloop.run(running)
    except BrokenPipeError:  # the reader of the output has closed the pipe: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNREAD
    except _failures() as error:
        return _fail(error, member)
    return 0


def _failures() -> tuple[type[BaseException], ...]:
    """Errors that a person can act on: a command that ends with one prints a line. Anything else is a bug and keeps its
    traceback."""
    import asyncpg

    from agents.errors import AgentError
    from inference.errors import InferenceError
    from migrations.embedded import EmbeddedPostgresError
    from migrations.pool import DATABASE_AWAY, UnsafeRole
    from migrations.runner import MigrationError
    from retrieval.errors import RetrievalError

    ours = (StartError, ConfigError, EmbeddedPostgresError, MigrationError, UnsafeRole)
    of_packages = (InferenceError, RetrievalError, AgentError)
    return (*ours, *of_packages, asyncpg.PostgresError, *DATABASE_AWAY)


async def _stoppable(command: Coroutine[Any, Any, None]) -> None:
    """Ctrl-C, SIGTERM and a closed terminal end a command in order: it stops the database that it started. Python's own
    handler would leave this work at the second Ctrl-C, in a traceback."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, *hangups()):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await command


def _start_log(level: str, member: Member | None) -> None:
    """Each line is one write, so that lines of several processes do not interleave."""
    logging.basicConfig(level=level.upper(), format=LOG_FORMAT.format(who=f"{member.name} " if member else ""))
    if level not in ("debug", "info"):
        # Failures of the library reach people as errors of ours; its own messages are for debugging.
        logging.getLogger("firsttoken.llama").setLevel(logging.CRITICAL)


def _fail(error: BaseException, member: Member | None = None) -> int:
    reason = " ".join(_sentence(error).split())
    if member is None:
        print(f"firsttoken: {reason}", file=sys.stderr)
    else:
        member.fail(reason)
    return EXIT_FAILED


def _sentence(error: BaseException) -> str:
    """What happened, and what to do if only the system's message says what happened."""
    if isinstance(error, OSError) and (error.filename or remedy(error, "")):
        where = f" ({error.filename})" if error.filename else ""
        return ": ".join(filter(None, (f"{error.strerror}{where}", remedy(error, ""))))
    if isinstance(error, TimeoutError) and not str(error):
        return "the database did not respond in time: check it, then try again"
    return str(error) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
