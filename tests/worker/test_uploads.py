"""What is too large, too much or no form at all is refused by name, and leaves nothing behind."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import pytest
from aiohttp import FormData

from migrations.pool import Database
from tests.worker.answering import answering, get
from tests.worker.harness import Client
from worker.config import Config

URL = "/v1/files"


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async with answering(database, "x", config=Config(request_mb=4, tenant_files_mb=2)) as client:
        yield client


def form(data: bytes, name: str = "a.txt", **fields: str) -> FormData:
    form = FormData()
    for key, value in ({"purpose": "assistants"} | fields).items():
        form.add_field(key, value)
    form.add_field("file", io.BytesIO(data), filename=name)
    return form


async def refused(client: Client, status: int, **request: object) -> str | None:
    async with client.post(URL, **request) as answer:  # type: ignore[arg-type]  # what every test sends differs
        error = (await answer.json())["error"]
        assert answer.status == status, error
        param: str | None = error["param"]
        return param


async def test_a_file_above_the_limit_is_refused_while_it_arrives(client: Client) -> None:
    assert await refused(client, 413, data=form(b"x" * (2**20 + 1))) == "file"
    assert (await get(client, URL))["data"] == []


async def test_a_tenant_has_so_much_room_and_gets_it_back(client: Client) -> None:
    sent = []
    for _ in range(2):
        async with client.post(URL, data=form(b"x" * 2**20)) as answer:
            assert answer.status == 200
            sent.append((await answer.json())["id"])
    assert await refused(client, 413, data=form(b"x")) == "file"
    async with client.delete(f"{URL}/{sent[0]}") as answer:
        assert answer.status == 200
    async with client.post(URL, data=form(b"x")) as answer:
        assert answer.status == 200


async def test_what_is_no_form_is_refused(client: Client) -> None:
    assert await refused(client, 400, json={"file": "a"}) == "file"
    assert await refused(client, 400, data=b"x", headers={"Content-Type": "multipart/form-data; boundary=a"}) == "file"
    assert await refused(client, 400, data=b"x", headers={"Content-Type": "multipart/form-data"}) == "file"
    empty = FormData({"purpose": "assistants"})
    empty.add_field("other", io.BytesIO(b"x"), filename="a.txt")
    assert await refused(client, 400, data=empty) is not None


async def test_a_field_that_is_not_acted_upon_is_named(client: Client) -> None:
    assert await refused(client, 400, data=form(b"x", **{"expires_after[anchor]": "created_at"})) == (
        "expires_after[anchor]"
    )
    assert await refused(client, 400, data=form(b"x", purpose="p" * 5000)) == "purpose"


async def test_nobody_is_told_of_a_file_without_credentials(client: Client) -> None:
    del client.session.headers["Authorization"]
    assert await refused(client, 401, data=form(b"x")) is None


DISPOSITION = b"Content-Disposition: form-data; name="
FILE = b"--b\r\n" + DISPOSITION + b'"file"; filename="a.txt"\r\n\r\nx\r\n--b--\r\n'


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 300_000,
        b"--b\r\nno header\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\n: empty\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\n" + b"x: y\r\n" * 1000 + b"\r\nx\r\n--b--\r\n",
        b"--b\r\n" + DISPOSITION + b'"\xff\xfe"\r\n\r\nx\r\n' + FILE,
        b"--b\r\n" + DISPOSITION + b'"_charset_"\r\n\r\n\xff\xfe\r\n' + FILE,
        b"--b\r\n" + DISPOSITION + b'"_charset_"\r\n\r\n' + b"x" * 50 + b"\r\n" + FILE,
        b"--b\r\nContent-Type: multipart/mixed\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\nContent-Transfer-Encoding: nonsense\r\n" + DISPOSITION + b'"purpose"\r\n\r\nx\r\n--b--\r\n',
        b"--b\r\n" + DISPOSITION + b"\"file\"; filename*=utf-9''%ff\r\n\r\nx\r\n--b--\r\n",
        FILE[:-10],
        b"--b",
        b"",
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as the worker does; pytest forgets it
async def test_a_form_that_is_none_is_refused(client: Client, data: bytes) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert await refused(client, 400, data=data, headers=headers) in ("file", "purpose", "??")


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=" + "x" * 99, "multipart/;b"])
async def test_a_form_without_its_boundary_is_refused(client: Client, kind: str) -> None:
    assert await refused(client, 400, data=FILE, headers={"Content-Type": kind}) == "file"


async def test_a_compressed_form_is_refused(client: Client) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Encoding": "gzip"}
    assert await refused(client, 415, data=FILE, headers=headers) == "Content-Encoding"
