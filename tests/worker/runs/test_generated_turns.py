"""The exact tokens of an answer are stored with it, so that any worker continues its conversation with its cache."""

from __future__ import annotations

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, post, services_with
from tests.worker.harness import serving
from tests.worker.sharing import signed_in

URL = "/v1/responses"


async def test_another_worker_learns_the_tokens_of_the_turns_before_until_their_response_is_deleted(
    database: Database,
) -> None:
    here, there, later = (ScriptedModel(["First."], name=MODEL, shares_turns=True) for _ in range(3))
    async with signed_in(database, services_with(database, here)) as one:
        conversation = (await post(one, "/v1/conversations", {}))["id"]
        body = {"input": "tell me", "conversation": conversation}
        first = await post(one, URL, body)
        for model, learnt in ((there, 1), (later, 0)):
            async with serving(services_with(database, model)) as other:
                other.session.headers["Authorization"] = one.session.headers["Authorization"]
                await post(other, URL, {**body, "store": False})
            assert list(model.learnt.values()) == learnt * [tuple(here.generations[0].ids)]
            async with one.delete(f"{URL}/{first['id']}") as deleted:
                assert deleted.status == (200 if learnt else 404)


async def test_nothing_is_looked_up_for_a_model_of_one_worker_alone(database: Database) -> None:
    here, there = (ScriptedModel(["First."], name=MODEL) for _ in range(2))
    async with signed_in(database, services_with(database, here)) as one:
        conversation = (await post(one, "/v1/conversations", {}))["id"]
        body = {"input": "tell me", "conversation": conversation}
        await post(one, URL, body)
        there.shares_turns = True
        async with serving(services_with(database, there)) as other:
            other.session.headers["Authorization"] = one.session.headers["Authorization"]
            await post(other, URL, body)
    assert there.learnt == {}
