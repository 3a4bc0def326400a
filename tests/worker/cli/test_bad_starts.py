"""`firsttoken serve` where something is wrong: one line that says what to do, and never a traceback."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inference.bundled import CHAT_MODEL, EMBEDDER
from migrations.embedded.placement import placement_of
from tests.disks import fill, root_only, small_disk
from tests.serving import Worker
from tests.worker.cli.test_main import complaint, firsttoken
from worker.home import Home

FOREIGN = b"\xff\x00\x17 not ours \x80"


@dataclass(frozen=True, slots=True)
class Start:
    """What is done to the home, with which arguments it is started, and what the line says."""

    sentence: str
    told: tuple[str, ...]
    happen: Callable[[Path], object] = lambda home: None
    arguments: tuple[str, ...] = ()
    command: str = "serve"
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence


DICE, OTHER = b'[agents.a]\ntools = ["dice"]\n', b'[agents.a]\nmodel = "other"\n'
TYPO, MISSING, Q8 = b"[models.a]\ncontxt = 5\n", b'[models.a]\nmodel = "x"\n', b'[models.a]\nkv_type = "q8_0"\n'
NO_FLASH = ("--flash-attention", "off")
TOKEN = ("--engines", "http://127.0.0.1:1", "--token-file", "HOME/no.token")


def writes(name: str, content: bytes = FOREIGN) -> Callable[[Path], object]:
    return lambda home: (home / name).write_bytes(content)


def half_of(model: Path) -> Callable[[Path], object]:
    return lambda home: (home / "half.gguf").write_bytes(model.read_bytes()[: model.stat().st_size // 2])


STARTS = [
    Start("the secret has other bytes", ("secret is damaged", "restore it, or remove it"), writes("secret")),
    Start("the secret is empty", ("secret is damaged", "restore it, or remove it"), writes("secret", b"")),
    Start("the secret is a folder", ("Is a directory", "secret"), lambda home: (home / "secret").mkdir()),
    Start("the lock is a folder", ("cannot be used: Is a directory", "--home"), lambda home: (home / "lock").mkdir()),
    Start("the agents have other bytes", ("agents.toml is not valid TOML",), writes("agents.toml")),
    Start(
        "the host is no name", ("--host nowhere.invalid is not an address",), arguments=("--host", "nowhere.invalid")
    ),
    Start("the host is too long for one", ("--host", "is not an address"), arguments=("--host", "x" * 300)),
    Start("the host is another machine's", ("192.0.2.1", "--host"), arguments=("--host", "192.0.2.1")),
    Start("the home has a name too long", ("File name too long", "--home"), arguments=("--home", "/tmp/" + "x" * 300)),
    Start(
        "the model is half a file",
        ("half.gguf", "truncated", "--model"),
        half_of(CHAT_MODEL),
        ("--model", "HOME/half.gguf"),
    ),
    Start(
        "the model has foreign bytes behind its mark",
        ("half.gguf", "--model"),
        writes("half.gguf", b"GGUF" + FOREIGN * 99),
        ("--model", "HOME/half.gguf"),
    ),
    Start("the model cannot chat", (EMBEDDER.name, "encoder", "--model"), arguments=("--model", str(EMBEDDER))),
    Start("the embedder is no encoder", (CHAT_MODEL.name, "--embedder"), arguments=("--embedder", str(CHAT_MODEL))),
    Start(
        "the database is another machine's that has no name",
        ("database cannot be reached", "check", "DATABASE_URL"),
        command="migrate",
        environment={"DATABASE_URL": "postgresql://a:secret@nowhere.invalid/b"},
    ),
    Start(
        "the database is none that can be spelled",
        ("DATABASE_URL is not valid", "percent-encoded"),
        command="migrate",
        environment={"DATABASE_URL": "postgresql://a:secret/of#mine@host/b"},
    ),
]


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_a_start_that_cannot_be_says_what_to_do_in_one_line(start: Start, home: Path, owner_dsn: str) -> None:
    start.happen(home)
    arguments = [argument.replace("HOME", str(home)) for argument in start.arguments]
    options = ["--port", "0"] if start.command == "serve" else []
    line = complaint(
        *(start.command, "--home", str(home), *options, *arguments), **{"DATABASE_URL": owner_dsn, **start.environment}
    )
    assert all(part in line for part in start.told), line
    assert "secret/of" not in line and ":secret" not in line


NOWHERE = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}  # told first, if it were asked first
MISTAKES = [
    Start("an agent has a tool that is none", ("there is no tool 'dice'",), writes("agents.toml", DICE)),
    Start("an agent has a model that is none", ("needs the model 'other'",), writes("agents.toml", OTHER)),
    Start("an alias has a model that is none", ("The alias gpt", "'other'"), arguments=("--alias", "gpt=other")),
    Start("a table has a key that is none", ("models.toml:2", "did you mean context"), writes("models.toml", TYPO)),
    Start("a table has a model that is none", ("models.a.model: no model x",), writes("models.toml", MISSING)),
    Start("a table conflicts with a flag", ("needs flash attention",), writes("models.toml", Q8), NO_FLASH),
    Start("the agents are a folder", ("Is a directory (--agents)",), lambda home: (home / "agents.toml").mkdir()),
    Start("the models are a folder", ("Is a directory (--models)",), lambda home: (home / "models.toml").mkdir()),
    Start("an adapter is not there", ("no.gguf", "--lora"), arguments=("--lora", "HOME/no.gguf")),
    Start("an embedder is not there", ("no.gguf", "--embedders"), arguments=("--embedders", "HOME/no.gguf")),
    Start("the reranker is not there", ("no.gguf", "--reranker"), arguments=("--reranker", "HOME/no.gguf")),
    Start("the token is not there", ("no.token", "--token-file"), arguments=TOKEN),
    Start("the ready file has no folder", ("no folder", "--ready-file"), arguments=("--ready-file", "HOME/no/ready")),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_in_the_files_is_told_before_anything_begins(mistake: Start, home: Path) -> None:
    mistake.happen(home)
    arguments = [argument.replace("HOME", str(home)) for argument in mistake.arguments]
    line = complaint("serve", "--home", str(home), "--port", "0", *arguments, **NOWHERE)
    assert all(part in line for part in mistake.told), line


def test_several_workers_learn_of_a_mistake_before_anything_begins(home: Path) -> None:
    writes("agents.toml", DICE)(home)
    line = complaint("serve", "--home", str(home), "--port", "0", "--workers", "2", **NOWHERE)
    assert "there is no tool 'dice'" in line


def test_a_worker_starts_whatever_the_files_say_that_it_can_make_again(make_home: Callable[[], Path]) -> None:
    home = make_home()
    (home / "kv").mkdir()
    names = ["local.key", "worker.json", "calibrations.json", "lock", "postgres.lock", "postgres.users"]
    names += ["kv/lock", "kv/turns", "kv/0123.state", "kv/0123.kv", "kv/0123.tmp", ".secret.1.tmp"]
    for name in names:
        (home / name).write_bytes(FOREIGN)
    worker = Worker(home, "--docs", "")
    ready = worker.wait_until_ready()
    assert Home(home).read_key() == ready["api_key"]
    assert worker.stop() == 0
    assert "Traceback" not in worker.log.read_text()


def test_a_link_to_a_worker_of_which_other_bytes_are_known_asks_for_its_address(home: Path) -> None:
    for content in (FOREIGN, b"[]"):
        Home(home).ready_file.write_bytes(content)
        assert "--url" in complaint("link", "--home", str(home))


@root_only
def test_on_a_full_disk_the_first_start_says_so(home: Path) -> None:
    with small_disk(home, 1):
        fill(home)
        assert "free some space" in complaint("serve", "--home", str(home), "--port", "0")


@root_only
def test_a_worker_whose_disk_ran_full_stops_in_time_and_its_next_start_says_why(home: Path, migrated: Path) -> None:
    with small_disk(home, 400):
        subprocess.run(["cp", "-a", migrated, placement_of(home).data], check=True)
        worker = Worker(home, "--docs", "")
        worker.wait_until_ready()
        filler = fill(home)
        assert worker.stop() == 0
        assert "Traceback" not in worker.log.read_text()
        fill(home)  # its end left some room
        assert "free some space" in complaint("migrate", "--home", str(home))
        filler.unlink()
        assert firsttoken("migrate", "--home", str(home)).stdout == "the database is up to date\n"
