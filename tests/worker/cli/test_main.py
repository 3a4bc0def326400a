"""The commands as processes: what they print, and the one line that they end in when something is wrong."""

from __future__ import annotations

import gc
import os
import pwd
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from migrations.embedded import EmbeddedPostgres
from tests.serving import ROOT, clean_environment
from tests.warm_process import WarmProcess
from worker.config import settings
from worker.lifecycle.process import function_at

TIMEOUT_S = 100


def firsttoken(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = WarmProcess("worker", arguments, output, errors, clean_environment(**environment))
        try:
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, code, output.read().decode(), errors.read().decode())


def test_a_command_whose_output_nobody_reads_ends_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-u", "-m", "worker", "models", "list"]
    with open(writer, "w") as output:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, cwd=ROOT, env=clean_environment(), timeout=TIMEOUT_S
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_command_runs_where_standard_streams_are_closed(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" -m worker version {closed}', sys.executable]
    assert subprocess.run(command, cwd=ROOT, env=clean_environment(), timeout=TIMEOUT_S).returncode == 0


def test_a_python_without_docstrings_is_refused() -> None:
    """Models read those of tools."""
    command = [sys.executable, "-OO", "-m", "worker", "serve"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=clean_environment(), timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.startswith("firsttoken: ") and "PYTHONOPTIMIZE" in done.stderr and done.stderr.count("\n") == 1


def test_no_garbage_is_looked_for_among_the_modules_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_command.py").write_text("import gc\n\ncommand = [gc.isenabled()]\n")
    monkeypatch.syspath_prepend(tmp_path)
    loaded: object = function_at("loaded_command.command")
    assert (loaded, gc.isenabled()) == ([False], True)
    assert id(loaded) not in {id(each) for each in gc.get_objects()}


def complaint(*arguments: str, **environment: str) -> str:
    """The one line on stderr of a command that must fail."""
    done = firsttoken(*arguments, **environment)
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("firsttoken: ")
    return lines[0]


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> Iterator[str]:
    """A home that all commands of this file share, with a database that runs already: each would start and stop it."""
    home = make_home()
    with EmbeddedPostgres(home):
        yield str(home)


def test_help_names_every_setting_with_its_variable_and_default() -> None:
    text = " ".join(firsttoken("serve", "--help").stdout.split())
    for setting in settings():
        assert setting.flag in text
        assert setting.variable in text
    assert "[FIRSTTOKEN_PORT; default 8080]" in text


def test_a_usage_fits_on_a_screen() -> None:
    usage = firsttoken("serve", "--help").stdout.split("\n\n")[0]
    assert usage == "usage: firsttoken serve [-h] [--SETTING VALUE]"
    usage = firsttoken("ingest", "notes").stderr  # without its store
    assert "--store NAME" in usage and "[--SETTING VALUE]" in usage and len(usage.splitlines()) < 6


def test_who_says_nothing_is_told_what_can_be_said() -> None:
    done = firsttoken()
    assert (done.returncode, done.stdout) == (2, "")
    assert "start a worker" in done.stderr and "firsttoken COMMAND --help" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (("fly",), "invalid choice: 'fly'"),
        (("serv",), "did you mean serve?"),
        (("keys", "crate", "x"), "did you mean create?"),
        (
            ("serve", "--modle", "x"),
            "firsttoken serve: error: unrecognized arguments: --modle x; did you mean --model",
        ),
        (("goodput", "--by", "tennant"), "did you mean tenant?"),
        (("models", "list", "--jsn"), "did you mean --json?"),
    ],
)
def test_a_slip_of_the_pen_is_told_with_what_was_meant(written: tuple[str, ...], told: str) -> None:
    done = firsttoken(*written)
    assert done.returncode == 2
    assert told in " ".join(done.stderr.split())


@pytest.mark.parametrize("command", [("keys", "list"), ("secret", "rotate"), ("cost",), ("canary", "status")])
def test_a_home_that_was_mistyped_is_told_and_not_furnished(tmp_path: Path, command: tuple[str, ...]) -> None:
    home = tmp_path / "typo"
    assert f"no worker was ever started with the home folder {home}" in complaint(*command, "--home", str(home))
    assert not home.exists()


def test_a_taken_port_is_named(home: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is already in use" in complaint("serve", "--home", home, "--port", str(port))


def test_a_setting_that_cannot_be_used_names_its_variable(home: str) -> None:
    assert "FIRSTTOKEN_PORT must be a number" in complaint("serve", "--home", home, FIRSTTOKEN_PORT="http")


def test_a_model_that_is_not_there_is_named(home: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    assert str(missing) in complaint("serve", "--home", home, "--port", "0", "--model", str(missing))


def test_a_setting_that_is_gone_is_refused_as_a_flag_and_has_no_effect_as_a_variable(home: str, tmp_path: Path) -> None:
    assert "--semantic-cache" in firsttoken("serve", "--semantic-cache", "0.9").stderr
    missing = ("--home", home, "--model", str(tmp_path / "none.gguf"))
    for command in ("serve", "engine"):
        warning, _ = firsttoken(command, *missing, FIRSTTOKEN_SEMANTIC_CACHE="0.9").stderr.splitlines()
        assert "FIRSTTOKEN_SEMANTIC_CACHE has no effect" in warning


def test_a_file_that_is_no_model_is_named(home: str, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_text("this is not a model")
    line = complaint("serve", "--home", home, "--port", "0", "--model", str(other))
    assert str(other) in line and "--model" in line


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--home" in complaint("serve", "--home", str(tmp_path / "file"), "--port", "0")


@pytest.mark.parametrize("setting", ["home", "model", "lora", "token-file"])
def test_a_path_in_the_home_of_a_user_without_one_is_named(home: str, setting: str) -> None:
    options = {"home": home, setting: "~no-such-user/file"}
    line = complaint("engine", *(part for name, value in options.items() for part in (f"--{name}", value)))
    assert "~no-such-user/file" in line


def test_a_database_that_does_not_answer_is_said_to(home: str) -> None:
    line = complaint("serve", "--home", home, "--port", "0", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert "database" in line.lower()


def test_a_database_url_that_is_none_is_refused(home: str) -> None:
    assert "database" in complaint("migrate", "--home", home, "--database-url", "mysql://x").lower()


def test_a_broken_data_folder_is_named(make_home: Callable[[], Path]) -> None:
    home = make_home()
    assert firsttoken("migrate", "--home", str(home)).returncode == 0
    [control] = (home / "postgres").glob("pg*/global/pg_control")
    content = control.read_bytes()
    control.write_bytes(b"")
    assert "Postgres did not start" in complaint("serve", "--home", str(home), "--port", "0")
    control.write_bytes(content)
    assert (
        firsttoken("migrate", "--home", str(home)).stdout == "the database is up to date\n"
    )  # repaired, it works again


def test_migrations_are_applied_once(home: str) -> None:
    first, second = firsttoken("migrate", "--home", home), firsttoken("migrate", "--home", home)
    assert first.returncode == second.returncode == 0
    assert second.stdout == "the database is up to date\n"


def test_a_key_has_the_bounds_that_it_was_made_with(home: str) -> None:
    made = firsttoken("keys", "create", "guest", "--home", home, "--budget", "steps=2", "--budget", "class=batch")
    assert made.returncode == 0
    listed = firsttoken("keys", "list", "--home", home).stdout
    assert "guest  class=batch  steps=2" in listed
    assert "  never used  " in listed and "used never" not in listed
    assert "--budget steps" in complaint("keys", "create", "x", "--home", home, "--budget", "steps=0")
    assert "--budget class" in complaint("keys", "create", "x", "--home", home, "--budget", "class=first")
    told = complaint("keys", "create", "x", "--home", home, "--budget", "step=3")
    assert "--budget step: there is no such key; did you mean steps?" in told


def test_a_key_is_made_listed_and_revoked(home: str) -> None:
    made = firsttoken("keys", "create", "laptop", "--home", home, "--operator", "--days", "3")
    key, _, note = made.stdout.split("\n", 2)
    id = note.split()[0]
    assert key.startswith("ft_") and id.startswith("key_")
    listed = firsttoken("keys", "list", "--home", home).stdout
    assert id in listed and "active" in listed and "chat,ingest,ops" in listed and "laptop" in listed
    assert key not in listed
    assert firsttoken("keys", "revoke", id, "--home", home).returncode == 0
    assert "revoked" in firsttoken("keys", "list", "--home", home).stdout
    assert "has no key key_x" in complaint("keys", "revoke", "key_x", "--home", home)


def test_a_key_has_the_scopes_that_it_was_made_with(home: str) -> None:
    made = firsttoken("keys", "create", "scraper", "--home", home, "--scope", "ops", "--tenant", "scoped")
    assert made.returncode == 0
    assert " ops " in (listed := firsttoken("keys", "list", "--home", home, "--tenant", "scoped").stdout)
    assert "chat" not in listed
    assert "invalid choice" in firsttoken("keys", "create", "x", "--home", home, "--scope", "root").stderr


def test_sessions_are_listed_and_one_that_is_not_there_is_named(home: str) -> None:
    firsttoken("keys", "create", "x", "--home", home)
    assert "no browser of tenant local" in firsttoken("sessions", "list", "--home", home).stdout
    assert "has no session sess_x" in complaint("sessions", "revoke", "sess_x", "--home", home)


@pytest.fixture
def other_home(make_home: Callable[[], Path]) -> Iterator[str]:
    """Whose keys and secret nobody else has touched."""
    home = make_home()
    with EmbeddedPostgres(home):
        yield str(home)


def test_the_secret_is_rotated_once_and_the_audit_log_tells_who_did_it(other_home: str) -> None:
    home = other_home
    key = firsttoken("keys", "create", "laptop", "--home", home).stdout.split("\n")[0]
    assert "Both secrets are valid now" in firsttoken("secret", "rotate", "--home", home).stdout
    assert "secret drop" in complaint("secret", "rotate", "--home", home)
    assert "wait" in complaint("secret", "drop", "--home", home)
    file = Path(home, "secret")
    file.write_bytes(file.read_bytes()[:64] + struct.pack("<d", 0))  # as if it had been rotated long ago
    assert "not used since the rotation would stop working (1)" in complaint("secret", "drop", "--home", home)
    assert "--secret-before" in complaint("secret", "rotate", "--home", home, FIRSTTOKEN_SECRET="x" * 32)
    assert firsttoken("secret", "drop", "--force", "--home", home).returncode == 0
    told = firsttoken("audit", "--home", home).stdout
    acts = [line.split()[2] for line in told.splitlines()]
    assert acts == ["key.created", "secret.rotated", "secret.dropped"], "what was refused was not done"
    assert f"by command {pwd.getpwuid(os.getuid()).pw_name} -" in told
    assert key not in told


def test_a_mistyped_tenant_is_not_made(home: str) -> None:
    for _ in range(2):
        assert "there is no tenant loacl" in complaint("keys", "list", "--home", home, "--tenant", "loacl")
    assert "there is no tenant loacl" in complaint("keys", "revoke", "key_x", "--home", home, "--tenant", "loacl")


def test_a_link_needs_a_worker_to_lead_to(home: str) -> None:
    assert "--url" in complaint("link", "--home", home)
    assert firsttoken("link", "--home", home, "--url", "https://chat.test/").stdout.startswith(
        "https://chat.test/?token="
    )


def test_files_are_read_into_a_store_and_unchanged_ones_are_not_read_again(home: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Tea\n\nSteep green tea for three minutes.\n")
    (tmp_path / "b.txt").write_text("Coffee is brewed with water just off the boil.\n")
    arguments = ("ingest", str(tmp_path), "--store", "drinks", "--home", home)
    assert "2 files read" in firsttoken(*arguments).stdout
    assert "0 files read" in (again := firsttoken(*arguments).stdout) and "2 unchanged" in again
    (tmp_path / "c.txt").write_bytes(b"\x00\x01\x02" * 100)
    done = firsttoken(*arguments)
    assert done.returncode != 0
    assert "c.txt" in done.stderr and "1 file could not be read" in done.stderr
    assert "2 unchanged" in done.stdout


def test_a_path_that_is_not_there_is_named(home: str, tmp_path: Path) -> None:
    done = firsttoken("ingest", str(tmp_path / "nowhere"), "--store", "x", "--home", home)
    assert done.returncode != 0
    assert "nowhere" in done.stderr and "Traceback" not in done.stderr
