"""`firsttoken engine` where it cannot start: one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.config import Config
from worker.engines.engine_config import read_token
from worker.errors import StartError
from worker.lifecycle.address import Address, engines_in, listen_socket
from worker.serve_engine import serve_engine
from worker.setting import ConfigError


async def test_a_network_is_not_served_without_a_token(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="--token-file"):
        await serve_engine(Config(home=tmp_path, listen="0.0.0.0:0"), began=0)


@pytest.mark.parametrize("listen", ["9000", "unix:", "host:99999", "unix:" + "x" * 200])
def test_a_place_that_is_none_is_named(listen: str) -> None:
    with pytest.raises(ConfigError, match="--listen must be"):
        Config(listen=listen)


@pytest.mark.parametrize(
    "engines", ["", "host:9000", "ftp://host", "http://user:secret@host", "unix:", "http://h/path"]
)
def test_engines_that_are_none_are_named_without_what_may_be_secret(engines: str) -> None:
    with pytest.raises(ConfigError, match="--engines must") as error:
        Config(engines=engines)
    assert "secret" not in str(error.value)


def test_engines_are_told_apart_by_their_addresses() -> None:
    assert engines_in("http://h:9000, http://h:9000/,https://H,unix:/a") == [
        "http://h:9000",
        "https://h:443",
        "unix:/a",
    ]
    assert engines_in("http://[::1]:9000") == ["http://[::1]:9000"]
    local = ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/a")
    assert [Address.listening(text).is_local for text in (*local, "0.0.0.0:1", "10.0.0.5:1", "name:1")] == [
        True
    ] * 4 + [False] * 3


def test_a_socket_in_use_is_left_alone_and_one_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    address = Address(path=tmp_path / "engine.sock")
    with listen_socket(address), pytest.raises(StartError, match="already in use"), listen_socket(address):
        pass
    assert not (tmp_path / "engine.sock").exists()
    (tmp_path / "engine.sock").write_text("a file of somebody")
    with pytest.raises(StartError), listen_socket(address):
        pass
    assert (tmp_path / "engine.sock").read_text() == "a file of somebody"


@pytest.mark.parametrize("text", ["short", "with blanks in it, though long enough", ""])
def test_a_token_that_no_header_takes_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(StartError, match="16 to 512"):
        read_token(Config(token_file=tmp_path / "token"))
    with pytest.raises(StartError, match="cannot be read"):
        read_token(Config(token_file=tmp_path / "none"))
    assert read_token(Config()) is None
