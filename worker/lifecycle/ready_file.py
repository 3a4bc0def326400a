"""How to reach a ready worker: printed for people, and written to a file for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from os.path import relpath
from pathlib import Path
from shlex import quote
from shutil import which

import orjson

from migrations.embedded.errors import remedy
from worker.config import HOME, VERSION
from worker.errors import StartError
from worker.home import write_atomically

# The first start creates a database and a model, neither of which shows in a terminal.
FIRST_START = """
Starting Firsttoken for the first time: preparing the database and the model.
This takes about a quarter of a minute, and a download before it. Later starts take a few seconds."""


@dataclass(frozen=True, slots=True)
class Ready:
    """How to reach a ready worker, or several on one port; the content of the ready file. `pid` is the process to
    stop.
    """

    url: str
    api_key: str = field(repr=False)
    chat_url: str = field(repr=False)  # it signs a browser in
    ops_url: str
    pid: int
    version: str = VERSION
    model: str = ""  # which one answers, and what it can do

    def banner(self, seconds: float, home: Path, who: str = "") -> str:
        elsewhere = "" if home == Path(os.path.expanduser(HOME)) else f" --home {quote(str(home))}"
        return f"""
Firsttoken {self.version} is ready after {seconds:.1f} s{who}. Press Ctrl-C to stop it.

  Chat     {self.chat_url}
           signs in one browser, once; for a new link: {_command()} link{elsewhere}
  Model    {self.model}
  Latency  {self.ops_url}
  API      curl {self.url}/v1/responses -H 'Content-Type: application/json' \\
             -H 'Authorization: Bearer {self.api_key}' -d '{{"input": "Hello!"}}'
"""


def _command() -> str:
    """Our command as typed here: only an installed one is on the PATH."""
    return "firsttoken" if which("firsttoken") else relpath(Path(sys.executable).parent / "firsttoken")


def check_folder(path: Path | None) -> None:
    """Before a start that would end with its ready file. Raises StartError."""
    if path is not None and not path.absolute().parent.is_dir():
        raise StartError(f"there is no folder for {path} (--ready-file)")


@contextmanager
def ready_files(paths: list[Path], ready: Ready) -> Iterator[None]:
    """The files exist while requests are served. Another worker of this home may have written its own since."""
    content = orjson.dumps(asdict(ready), option=orjson.OPT_INDENT_2)
    try:
        for path in paths:
            _write(path, content)
        yield
    finally:
        for path in paths:
            with suppress(OSError):
                if path.read_bytes() == content:
                    path.unlink()


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        todo = remedy(error, "choose another with --ready-file")
        raise StartError(f"{path} cannot be written: {error.strerror}; {todo}") from error
