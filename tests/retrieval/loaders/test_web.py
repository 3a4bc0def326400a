"""Fetching from a real server on this machine, which has to be allowed first."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from retrieval.errors import UnreadableFile
from retrieval.loaders import web
from retrieval.loaders.web import fetch, is_public


class Site(BaseHTTPRequestHandler):
    pages: dict[str, tuple[int, dict[str, str], bytes]] = {  # noqa: RUF012
        "/guide": (200, {"content-type": "text/html; charset=utf-8"}, b"<p>Berths</p>"),
        "/notes.md": (200, {"content-type": "application/octet-stream"}, b"# Notes"),
        "/plain": (200, {"content-type": "text/plain"}, b"words"),
        "/packed": (200, {"content-encoding": "gzip"}, b"..."),
        "/moved": (302, {"location": "/guide"}, b""),
        "/round": (302, {"location": "/round"}, b""),
        "/file": (302, {"location": "file:///etc/passwd"}, b""),
        "/odd": (302, {"location": "http://["}, b""),
        "/inward": (302, {"location": "http://169.254.169.254/latest"}, b""),
    }

    def do_GET(self) -> None:
        if self.path == "/drops":
            self.drip()
            return
        status, headers, body = self.pages.get(self.path, (404, {}, b""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def drip(self) -> None:
        """A header without an end."""
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.0 200 OK\r\n")
            while True:
                self.wfile.write(b"x")  # of one header
                time.sleep(0.01)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "name", "data"),
    [
        ("/guide", "guide.html", b"<p>Berths</p>"),
        ("/moved", "guide.html", b"<p>Berths</p>"),
        ("/notes.md", "notes.md", b"# Notes"),
        ("/plain", "plain.txt", b"words"),
    ],
)
def test_a_page_is_named_after_its_kind(site: str, path: str, name: str, data: bytes) -> None:
    fetched = fetch(site + path, allow_private=True)
    assert (fetched.name, fetched.data) == (name, data)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/gone", "answers 404"),
        ("/packed", "comes compressed"),
        ("/round", "redirects more than"),
        ("/file", "cannot be fetched"),
        ("/odd", "cannot be fetched"),
    ],
)
def test_what_cannot_be_fetched_says_why(site: str, path: str, reason: str) -> None:
    with pytest.raises(UnreadableFile, match=reason):
        fetch(site + path, allow_private=True)


def test_who_answers_without_an_end_is_cut_off(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SECONDS_MAX", 0.2)
    with pytest.raises(UnreadableFile, match="takes longer than"):
        fetch(f"{site}/drops", allow_private=True)


def test_this_machine_is_not_fetched_from(site: str) -> None:
    for url in (site, site.replace("127.0.0.1", "localhost"), "http://[::1]/"):
        with pytest.raises(UnreadableFile, match="private network"):
            fetch(url)
    for url in ("http://2130706433/", "http://0/"):
        with pytest.raises(UnreadableFile, match="cannot be fetched"):
            fetch(url)


def test_a_redirect_is_checked_like_the_first_address(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own address passes for a public one, so only the redirect's can be refused."""
    here = ipaddress.ip_address("127.0.0.1")
    monkeypatch.setattr(web, "is_public", lambda address: address == here or is_public(address))
    with pytest.raises(UnreadableFile, match="private network"):
        fetch(f"{site}/inward")


@pytest.mark.parametrize("url", ["http://a b/", "http://", "http://x:99999/", "http://u:p@x/", "ftp://x/", "http://é/"])
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(UnreadableFile):
        fetch(url)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_only_what_everybody_can_reach_is_public(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public
