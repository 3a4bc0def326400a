"""Batches of several tenants and workers: who is answered when, what becomes of those that end early, and limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest
from aiohttp import FormData

from agents.definition import USUAL
from inference.generation import ANY_TERMS, Priority, Sampling, Terms
from migrations.pool import Database
from tests.scripted import ScriptedGeneration, ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering, get, post, services_with
from tests.worker.harness import Client
from tests.worker.sharing import signed_in
from worker.config import Config
from worker.runs.batches import batch_store, batch_worker
from worker.runs.batches.batch_store import BatchStore, Line, LineStore
from worker.runs.batches.batch_worker import BATCHES, BatchWorker
from worker.runs.batches.line_answer import answer_body
from worker.services import SERVICES
from worker.wire.batches import Answer, Tokens

URL = "/v1/chat/completions"
NOBODY_TAKES = Config(batch_lines=0)
PATIENCE_S = 60.0
ANSWER = Answer(b"{}", True, Tokens(3, 0, 2, 0))


@pytest.fixture(autouse=True)
async def no_batches(owner_dsn: str) -> AsyncIterator[None]:
    """Workers of other tests would take what is left."""
    yield
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute("delete from batches")
    await connection.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody tells of is noticed soon."""
    monkeypatch.setattr(batch_worker, "POLL_S", 0.05)


@dataclass
class NotingModel(ScriptedModel):
    priorities: list[Priority] = field(default_factory=list)

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        self.priorities.append(terms.priority)
        return super().generate(prompt, sampling, terms)


def asks(*custom_ids: str) -> bytes:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    lines = [{"custom_id": id, "method": "POST", "url": URL, "body": body} for id in custom_ids]
    return "\n".join(map(json.dumps, lines)).encode()


async def upload(client: Client, content: bytes) -> str:
    form = FormData({"purpose": "batch"})
    form.add_field("file", content, filename="batch.jsonl")
    async with client.post("/v1/files", data=form) as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["id"])


async def send(client: Client, content: bytes, status: int = 200, **more: Any) -> dict[str, Any]:
    file_id = await upload(client, content)
    body = {"input_file_id": file_id, "endpoint": URL, "completion_window": "24h", **more}
    return dict(await post(client, "/v1/batches", body, status))


async def wait(client: Client, batch: dict[str, Any], *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while batch["status"] not in statuses:
            await asyncio.sleep(0.02)
            batch = await get(client, f"/v1/batches/{batch['id']}")
    return batch


async def read(client: Client, file_id: str | None) -> list[dict[str, Any]]:
    async with client.get(f"/v1/files/{file_id}/content") as answer:
        return [json.loads(line) for line in (await answer.text()).splitlines()]


async def change(owner_dsn: str, batch: dict[str, Any], what: str) -> None:
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute(f"update batches set {what} where id = $1", batch["id"])
    await connection.close()


async def test_lines_are_generated_in_the_lowest_class_and_miss_no_target(database: Database, owner_dsn: str) -> None:
    model = NotingModel(["One."], name=MODEL)
    services = replace(services_with(database, model), surfaces=USUAL)
    async with signed_in(database, services) as client:
        batch = await wait(client, await send(client, asks("a")), "completed")
        (told,) = await read(client, batch["output_file_id"])
        assert client.app is not None
        await client.app[SERVICES].telemetry.flush()
        body = told["response"]["body"]
        connection = await asyncpg.connect(owner_dsn)
        turn = await connection.fetchrow("select surface, within_target from traces where response_id = $1", body["id"])
        await connection.close()
    assert model.priorities == [Priority.BATCH]
    assert body["choices"][0]["message"]["content"] == "One."
    assert turn is not None and tuple(turn) == ("batch", None)


async def test_another_tenant_sees_none_of_it(database: Database) -> None:
    async with answering(database, config=NOBODY_TAKES) as mine, answering(database, config=NOBODY_TAKES) as stranger:
        batch = await send(mine, asks("a"))
        await get(stranger, f"/v1/batches/{batch['id']}", 404)
        await post(stranger, f"/v1/batches/{batch['id']}/cancel", {}, 404)
        assert (await get(stranger, "/v1/batches"))["data"] == []
        body = {"input_file_id": batch["input_file_id"], "endpoint": URL, "completion_window": "24h"}
        assert (await post(stranger, "/v1/batches", body, 404))["error"]["param"] == "input_file_id"
        assert [each["id"] for each in (await get(mine, "/v1/batches"))["data"]] == [batch["id"]]


async def test_a_batch_that_expires_ends_what_runs_and_tells_what_was_not_answered(
    database: Database, owner_dsn: str
) -> None:
    model = StallingModel(["Half an answer"], name=MODEL)
    async with answering(database, model=model) as client:
        batch = await send(client, asks("a", "b"), completion_window="1h")
        await asyncio.wait_for(model.started.wait(), PATIENCE_S)
        await change(owner_dsn, batch, "expires_at = now()")
        batch = await wait(client, batch, "expired")
        left = await read(client, batch["error_file_id"])
        await asyncio.wait_for(model.running[0].stopped.wait(), PATIENCE_S)
    assert [(each["custom_id"], each["response"], each["error"]["code"]) for each in left] == [
        ("a", None, "batch_expired"),
        ("b", None, "batch_expired"),
    ]
    assert batch["output_file_id"] is None and batch["expired_at"] and batch["finalizing_at"]


async def test_a_worker_that_stops_gives_its_lines_to_another_one_at_once(database: Database) -> None:
    """With one place: another place that looks for a line in this very moment would take it, until the worker ends."""
    model = StallingModel(["Half an answer"], name=MODEL)
    async with answering(database, model=model, config=Config(batch_lines=1)) as client:
        assert client.app is not None
        batch = await send(client, asks("a"))
        await asyncio.wait_for(model.started.wait(), PATIENCE_S)
        await client.app[BATCHES].stop()
        assert model.running[0].stopped.is_set()
        lines = LineStore(database)
        again = await lines.claim(1, 0)
        assert again is not None and (again.batch_id, again.attempts) == (batch["id"], 1)


async def test_a_line_that_a_stopping_worker_was_about_to_take_is_free_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    took, goes_on, undoes = asyncio.Event(), asyncio.Event(), asyncio.Event()
    claim, attempt = LineStore.claim, BatchWorker._try

    async def slowly(self: LineStore, worker: int, place: int) -> Line | None:
        line = await claim(self, worker, place)
        if line is not None:
            took.set()
            await goes_on.wait()
        return line

    async def noted(self: BatchWorker, transaction: Callable[[], Awaitable[None]]) -> None:
        undoes.set()
        await attempt(self, transaction)

    monkeypatch.setattr(LineStore, "claim", slowly)
    monkeypatch.setattr(BatchWorker, "_try", noted)
    monkeypatch.setattr(batch_worker, "GIVE_BACK_S", PATIENCE_S)
    async with answering(database, config=Config(batch_lines=1)) as client:
        assert client.app is not None
        batch = await send(client, asks("a"))
        await asyncio.wait_for(took.wait(), PATIENCE_S)
        async with asyncio.TaskGroup() as stopping:
            stopping.create_task(client.app[BATCHES].stop())
            await asyncio.wait_for(undoes.wait(), PATIENCE_S)  # it was asked to stop meanwhile
            goes_on.set()
        again = await claim(LineStore(database), 1, 0)
        assert again is not None and (again.batch_id, again.attempts) == (batch["id"], 1)


async def test_an_answer_that_a_stopping_worker_was_about_to_store_is_stored(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, store, never = asyncio.Event(), LineStore.answer, asyncio.Event()

    async def slowly(self: LineStore, line: Line, answer: Answer) -> None:
        if not answers.is_set():
            answers.set()
            await never.wait()
        await store(self, line, answer)

    monkeypatch.setattr(LineStore, "answer", slowly)
    monkeypatch.setattr(batch_worker, "GIVE_BACK_S", PATIENCE_S)
    async with answering(database, "One.", config=Config(batch_lines=1)) as client:
        assert client.app is not None
        batch = await send(client, asks("a"))
        await asyncio.wait_for(answers.wait(), PATIENCE_S)
        await client.app[BATCHES].stop()
        assert await counts(client, batch) == (1, 1, 0)


async def test_a_line_whose_worker_is_gone_has_one_answer_that_of_its_heir(database: Database) -> None:
    lines = LineStore(database)
    async with answering(database, config=NOBODY_TAKES) as client:
        batch = await ready(client, database, asks("a", "b"))
        gone, heir = [await claimed(lines, worker) for worker in (1, 2)]  # neither holds a lock: both are gone
        assert (gone.number, heir.number, heir.attempts) == (1, 1, 2)
        await lines.answer(gone, ANSWER)
        assert await counts(client, batch) == (2, 0, 0)
        await lines.answer(heir, ANSWER)
        await lines.answer(heir, ANSWER)  # as if the answer to the COMMIT had been lost
        batch = await get(client, f"/v1/batches/{batch['id']}")
        assert (await counts(client, batch), batch["usage"]["total_tokens"]) == ((2, 1, 0), 5)
        assert (await claimed(lines, 3)).number == 2


async def test_tenants_take_turns_and_so_do_the_batches_of_one(database: Database) -> None:
    lines = LineStore(database)
    async with answering(database, config=NOBODY_TAKES) as first, answering(database, config=NOBODY_TAKES) as second:
        batches = [await ready(client, database, asks("a", "b", "c")) for client in (first, first, second)]
        taken = []
        for _ in range(6):
            line = await claimed(lines, 1)
            taken.append([batch["id"] for batch in batches].index(line.batch_id))
            await lines.answer(line, ANSWER)
    assert taken == [0, 2, 1, 2, 0, 2]


async def test_who_has_lines_in_progress_comes_after_who_has_none(database: Database) -> None:
    lines = LineStore(database)
    async with answering(database, config=NOBODY_TAKES) as first, answering(database, config=NOBODY_TAKES) as second:
        assert first.app is not None
        worker = first.app[SERVICES].presence.worker  # alive: what it holds is its own
        early = await ready(first, database, asks("a", "b", "c", "d"))
        taken = [(await claimed(lines, worker, place)).batch_id for place in (0, 1)]
        late = await ready(second, database, asks("a", "b", "c", "d"))
        taken += [(await claimed(lines, worker, place)).batch_id for place in (2, 3)]
    assert taken == [early["id"], early["id"], late["id"], late["id"]]


async def test_a_line_that_ends_every_worker_is_given_up(database: Database) -> None:
    lines = LineStore(database)
    async with answering(database, config=NOBODY_TAKES) as client:
        batch = await ready(client, database, asks("a"))
        for dead in range(1, 1 + batch_worker.ATTEMPTS_MAX):
            await claimed(lines, dead)
        async with answering(database):
            batch = await wait(client, batch, "completed")
        (told,) = await read(client, batch["error_file_id"])
    assert told["error"]["code"] == "server_error" and "started 5 times" in told["error"]["message"]


async def test_lines_of_a_key_that_was_revoked_are_not_answered(database: Database, owner_dsn: str) -> None:
    connection = await asyncpg.connect(owner_dsn)
    async with answering(database, config=NOBODY_TAKES) as client:
        batch = await ready(client, database, asks("a"))
        await connection.execute(
            "update api_keys set revoked_at = now() "
            "where id::text = (select caller->>'subject' from batches where id = $1)",
            batch["id"],
        )
        async with answering(database), asyncio.timeout(PATIENCE_S):
            pieces: list[asyncpg.Record] = []
            while not pieces:
                await asyncio.sleep(0.02)
                pieces = await connection.fetch(
                    "select p.data from batches b join file_pieces p on p.file_id = b.error_file_id where b.id = $1",
                    batch["id"],
                )
    await connection.close()
    (told,) = [json.loads(line) for line in b"".join(piece["data"] for piece in pieces).splitlines()]
    assert (told["response"]["status_code"], told["response"]["body"]["error"]["code"]) == (401, "invalid_api_key")


async def test_there_is_a_limit_to_the_batches_of_a_tenant(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_store, "TENANT_BATCHES_MAX", 2)
    async with answering(database, config=NOBODY_TAKES) as client:
        for _ in range(2):
            await send(client, asks("a"))
        assert "2 of your batches" in (await send(client, asks("a"), 429))["error"]["message"]
        async with answering(database, config=NOBODY_TAKES) as other:
            await send(other, asks("a"))


async def test_there_is_a_limit_to_lines_and_to_their_length(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_worker, "LINES_MAX", 2)
    async with answering(database, config=Config(body_bytes=1024)) as client:
        batch = await wait(client, await send(client, asks("a", "b", "c")), "failed")
        assert [error["code"] for error in batch["errors"]["data"]] == ["too_many_lines"]
        batch = await wait(client, await send(client, asks("a", "b" * 2000)), "failed")
        assert [(error["line"], error["code"]) for error in batch["errors"]["data"]] == [(2, "line_too_long")]


async def test_an_output_is_written_where_the_tenant_has_no_room_left(database: Database) -> None:
    line = asks("a") + b"\n"
    async with answering(database, "Hi.", config=Config(tenant_files_mb=1)) as client:
        batch = await wait(client, await send(client, line + b" " * (2**20 - len(line))), "completed")
        assert [each["custom_id"] for each in await read(client, batch["output_file_id"])] == ["a"]


async def test_a_batch_whose_input_was_deleted_says_so(database: Database) -> None:
    async with answering(database, config=NOBODY_TAKES) as client:
        batch = await send(client, asks("a"))
        async with client.delete(f"/v1/files/{batch['input_file_id']}") as answer:
            assert answer.status == 200
        async with answering(database):
            batch = await wait(client, batch, "failed")
    assert [error["code"] for error in batch["errors"]["data"]] == ["file_not_found"]


async def test_a_batch_that_is_cancelled_before_it_is_read_has_no_files(database: Database) -> None:
    async with answering(database, config=NOBODY_TAKES) as client:
        batch = await send(client, asks("a"))
        assert (await post(client, f"/v1/batches/{batch['id']}/cancel", {}))["status"] == "cancelling"
        async with answering(database):
            batch = await wait(client, batch, "cancelled")
    assert (batch["output_file_id"], batch["error_file_id"], batch["request_counts"]["total"]) == (None, None, 0)


async def ready(client: Client, database: Database, content: bytes) -> dict[str, Any]:
    """A batch whose lines wait for somebody to answer them; checked by the means of the worker itself."""
    batch, store = await send(client, content), BatchStore(database)
    assert client.app is not None
    worker = batch_worker.BatchWorker(client.app[SERVICES], 1, answer_body)
    while (claim := await store.claim(client.app[SERVICES].presence.worker)) is not None:
        await worker._steer(claim)
    return await wait(client, batch, "in_progress")


async def claimed(lines: LineStore, worker: int, place: int = 0) -> Line:
    line = await lines.claim(worker, place)
    assert line is not None
    return line


async def counts(client: Client, batch: dict[str, Any]) -> tuple[int, int, int]:
    told = (await get(client, f"/v1/batches/{batch['id']}"))["request_counts"]
    return told["total"], told["completed"], told["failed"]
