"""Several models in one worker: both bundled ones, with real engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agents.definition import AgentRegistry, Definition
from agents.router import Candidate
from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.errors import ModelAway, ModelNotLoaded, NoRoom
from inference.generation import Finish, Sampling, Terms
from inference.grammar.constraint import Vocabulary
from inference.llama import LlamaModel
from inference.prompt import ChatMessage
from inference.provisioning.fit import here
from inference.template import ChatTemplate
from migrations.pool import Database
from tests.inference.adapters import random_changes, write_adapter
from tests.worker.answering import get, post, services_with
from tests.worker.harness import SECRET, Client, serving
from worker.auth.keys import Keys
from worker.config import Config, load
from worker.engines.active_engines import ActiveEngines, open_engines
from worker.engines.engine_config import engine_config
from worker.engines.model_aliases import ModelAliases
from worker.engines.on_demand import OnDemandModel
from worker.lifecycle.supervisor import Supervisor

LITTLE = {"streams": "2", "resident": "1", "context": "1024", "kv_type": "f16", "parked_mb": "0", "kv_disk_mb": "0"}
TWO = """
[models.small]
model = "demo-draft"
price = { engine_second = 0.2 }

[models.large]
model = "demo-chat"
load = "use"

[aliases]
fast = "small"
best = "large"

[routes.auto]
policy = "cascade"
first = "small"
then = "large"
doubt = { mean_logprob = 0.0, min_logprob = 0.0 }
"""
ANY_ANSWER = pytest.mark.any_answer("which model answers is asked, not what it says")


def settings(home: Path, text: str = TWO, **flags: str) -> Config:
    (home / "models.toml").write_text(text)
    return load({"home": str(home), **LITTLE, **flags}, {})


def opened(config: Config) -> AbstractAsyncContextManager[ActiveEngines]:
    return open_engines(config, SECRET, Supervisor(), lambda share: None)


async def say(model: OnDemandModel, tokens: int = 4) -> Finish | None:
    with model.in_use():
        await model.load()
        generation = model.generate(
            model.encode(model.render([ChatMessage("user", "Hello!")])), Sampling(max_tokens=tokens, temperature=0)
        )
        await generation.stream(lambda _: None)
        return generation.finish


def on_demand(engines: ActiveEngines, name: str) -> OnDemandModel:
    model = engines.models[name]
    assert isinstance(model, OnDemandModel)
    return model


def needs_mb(config: Config, path: Path) -> float:
    """Megabytes that a model takes in a worker with these settings."""
    need = here(replace(engine_config(config), model_path=path)).need
    return (need.total + need.parked_max) / 1e6


@asynccontextmanager
async def client_of(database: Database, engines: ActiveEngines, **rest: object) -> AsyncIterator[Client]:
    services = replace(
        services_with(database, engines.model_registry),
        engines=engines,
        engine_stats=engines.stats,
        aliases=ModelAliases(dict(engines.aliases)),
        **rest,  # type: ignore[arg-type]
    )
    keys = Keys(database, SECRET)
    async with serving(services) as client:
        key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield client
        await services.telemetry.flush()


async def test_where_one_model_has_a_price_the_others_cost_what_routes_assume(tmp_path: Path) -> None:
    at_use = TWO.replace('model = "demo-draft"', 'model = "demo-draft"\nload = "use"')
    for text, prices in ((at_use, [0.2, 1.0]), (at_use.replace("price", "# price"), [None, None])):
        async with opened(settings(tmp_path, text)) as engines:
            assert [each.own_price for each in engines.model_registry.candidates.values()] == prices


@ANY_ANSWER
async def test_a_worker_answers_with_two_models_and_by_a_third_name(tmp_path: Path, database: Database) -> None:
    async with opened(settings(tmp_path)) as engines:
        assert engines.states == {"small": "loaded", "large": "not_loaded"}
        agent_registry = AgentRegistry({"support": Definition(model="large"), "anybody": Definition()})
        async with client_of(database, engines, agent_registry=agent_registry) as client:
            listed = {each["id"]: each for each in (await get(client, "/v1/models"))["data"]}
            assert list(listed)[:5] == ["small", "large", "auto", "agent/support", "agent/anybody"]
            assert (listed["fast"]["root"], listed["best"]["root"]) == ("small", "large")
            assert listed["large"]["firsttoken_state"] == "not_loaded"
            assert listed["large"]["firsttoken_parameters"] > listed["small"]["firsttoken_parameters"]
            assert listed["auto"]["context_length"] == 1024
            ready = await get(client, "/readyz")
            assert ready["models"] == {"loaded": 1, "loading": 0, "not_loaded": 1}
            answered: dict[str | None, object] = {}
            for name in ("small", "fast", "agent/anybody", None, "best", "large", "agent/support", "auto"):
                body = {"input": "Hello!", "max_output_tokens": 16, "temperature": 0, "model": name}
                response = await post(client, "/v1/responses", {key: value for key, value in body.items() if value})
                await asyncio.sleep(0)
                trace = await trace_of(client, response["id"])
                answered[name] = trace["model"]
                stands_for = {"fast": "small", "best": "large"}
                assert response["model"] == (stands_for.get(name, name) if name else "small")
            small = ("small", "fast", "agent/anybody", None)
            assert answered == {name: "small" if name in small else "large" for name in answered}
            assert (await get(client, "/readyz"))["models"]["loaded"] == 2
            loaded = await get(client, "/v1/models/large")
            assert {"room", "weights", "first_step", "prompts"} == loaded["firsttoken_start_ms"].keys()
            wrong = await post(client, "/v1/responses", {"input": "Hello!", "model": "huge"}, status=404)
            assert "Available: small, large, auto, agent/support" in wrong["error"]["message"]
            tokens = await post(client, "/tokenize", {"content": "Hello!", "model": "best"})
            assert tokens["max_model_len"] == 1024


@ANY_ANSWER
async def test_an_agent_names_a_model_with_an_adapter_on_the_weights_of_another(
    tmp_path: Path, database: Database
) -> None:
    write_adapter(tmp_path / "support.gguf", random_changes(DRAFT_MODEL))
    text = f"""
    [models.base]
    model = "demo-draft"
    [models.support]
    model = "demo-draft"
    lora = "{tmp_path}/support.gguf:0.5"
    """
    async with opened(settings(tmp_path, text)) as engines:
        agent_registry = AgentRegistry({"support": Definition(model="support"), "plain": Definition(model="base")})
        async with client_of(database, engines, agent_registry=agent_registry) as client:
            listed = {each["id"]: each for each in (await get(client, "/v1/models"))["data"]}
            assert listed["support"]["firsttoken_lora"] == [{"file": "support.gguf", "scale": 0.5}]
            assert listed["agent/support"]["firsttoken_lora"] == listed["support"]["firsttoken_lora"]
            assert "firsttoken_lora" not in listed["base"]
            body = {"input": "Hello!", "max_output_tokens": 16, "temperature": 0, "ignore_eos": True}
            said = {
                name: (await post(client, "/v1/responses", {**body, "model": name}))["output"][0]["content"][0]["text"]
                for name in ("base", "agent/plain", "support", "agent/support")
            }
            assert said["base"] == said["agent/plain"] != said["support"] == said["agent/support"]


@ANY_ANSWER
async def test_a_reload_refuses_an_adapter_that_does_not_fit_and_serves_on(tmp_path: Path) -> None:
    write_adapter(tmp_path / "support.gguf", random_changes(DRAFT_MODEL))
    lora = f'lora = "{tmp_path}/support.gguf"'
    config = settings(tmp_path, f'[models.support]\nmodel = "demo-draft"\n{lora}')
    async with opened(config) as engines:
        assert engines.reload is not None
        before = on_demand(engines, "support")
        settings(tmp_path, f'[models.support]\nmodel = "demo-chat"\n{lora}')
        with pytest.raises(ModelAway) as refused:
            await engines.reload(lambda file: None, _nothing)
        assert "support.gguf does not fit demo-chat" in str(refused.value.__cause__)
        settings(tmp_path, f'[models.support]\nmodel = "demo-draft"\nlora = "{tmp_path}/absent.gguf"')
        with pytest.raises(ModelNotLoaded, match=r"no adapter file at .*absent\.gguf"):
            await engines.reload(lambda file: None, _nothing)
        assert on_demand(engines, "support") is before
        assert await say(before) is not None


async def _nothing(_: Candidate) -> None:
    pass


async def trace_of(client: Client, response_id: str) -> dict[str, object]:
    """It is stored beside the answer, soon after it."""
    async with asyncio.timeout(60):
        while True:
            async with client.get(f"/ops/api/traces/{response_id}") as answer:
                if answer.status == 200:
                    trace: dict[str, object] = await answer.json()
                    return trace
            await asyncio.sleep(0.02)


@ANY_ANSWER
async def test_prompts_and_states_of_two_models_are_kept_apart(tmp_path: Path) -> None:
    config = settings(tmp_path, TWO.replace('load = "use"', ""), kv_disk_mb="16")
    async with opened(config) as engines:
        for name in ("small", "large"):
            assert await say(on_demand(engines, name)) is not None
        totals = [model.stats()["prompt_tokens_total"] for model in engines.models.values()]
        assert all(totals) and engines.stats()["prompt_tokens_total"] == sum(totals)
        folders = {folder.name for folder in (tmp_path / "kv" / "models").iterdir()}
    assert folders == {"small", "large"}


@ANY_ANSWER
async def test_a_model_that_is_needed_takes_the_place_of_the_one_that_is_idle(tmp_path: Path) -> None:
    config = settings(tmp_path)
    small, large = needs_mb(config, DRAFT_MODEL), needs_mb(config, CHAT_MODEL)
    for_one = str(int(max(small, large) + min(small, large) / 2))
    async with opened(replace(config, memory_mb=int(for_one))) as engines:
        assert engines.states == {"small": "loaded", "large": "not_loaded"}
        await say(on_demand(engines, "large"))
        assert engines.states == {"small": "not_loaded", "large": "loaded"}
        assert engines.stats()["models_unloaded_total"] == 1
        await say(on_demand(engines, "small"))
        assert engines.states == {"small": "loaded", "large": "not_loaded"}
        between_two_steps = on_demand(engines, "small").in_use()
        with between_two_steps, pytest.raises(NoRoom, match="for the model large while other models are in use"):
            await say(on_demand(engines, "large"))
        await say(on_demand(engines, "large"))


@ANY_ANSWER
async def test_of_idle_models_the_one_that_was_used_least_recently_leaves(tmp_path: Path) -> None:
    text = TWO + '\n[models.third]\nmodel = "demo-draft"\nload = "use"\n'
    config = settings(tmp_path, text.replace('model = "demo-chat"', 'model = "demo-draft"'))
    each = needs_mb(config, DRAFT_MODEL)
    async with opened(replace(config, memory_mb=int(each * 2.5))) as engines:
        await say(on_demand(engines, "large"))
        await say(on_demand(engines, "small"))
        await say(on_demand(engines, "third"))
        assert engines.states == {"small": "loaded", "large": "not_loaded", "third": "loaded"}


@ANY_ANSWER
async def test_a_model_is_loaded_once_for_all_who_wait_and_told_how_far_it_is(tmp_path: Path) -> None:
    config = settings(tmp_path)
    shares = []
    async with opened(config) as engines:
        large = on_demand(engines, "large")
        waiting = [asyncio.create_task(say(large)) for _ in range(3)]
        await asyncio.sleep(0)  # each of them asks
        shares.append(engines.loading)
        waiting[0].cancel()  # one who leaves does not take it from the others
        assert await asyncio.gather(*waiting[1:]) == [Finish.LENGTH, Finish.LENGTH]
        assert large.share_loaded == 1.0 and engines.loading is None
        assert len([name for name in engines.starts if name == "large"]) == 1
        with suppress(asyncio.CancelledError):
            await waiting[0]
    assert shares[0] is not None and 0 <= shares[0] <= 1


async def test_the_prompts_of_the_configuration_are_read_before_a_model_takes_its_first_turn(tmp_path: Path) -> None:
    async with opened(settings(tmp_path)) as engines:
        large = on_demand(engines, "large")
        prompt = large.encode(large.render([ChatMessage("system", "You answer. " * 20), ChatMessage("user", "?")]))
        beginning = prompt[:-8]
        large.share(beginning)
        await large.load()
        generation = large.generate(prompt, Sampling(max_tokens=1, temperature=0), Terms(salt="somebody"))
        await generation.stream(lambda _: None)
        assert generation.facts.cached_tokens >= len(beginning) - 1
        span = next(span for span in engines.starts["large"].spans if span.name == "prompts")
        assert span.attributes["count"] == 1


async def test_what_is_known_of_a_file_is_not_made_again_for_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "large.gguf"
    file.write_bytes(CHAT_MODEL.read_bytes())
    made: Counter[str] = Counter()

    def count(cls: type, name: str) -> None:
        real = getattr(cls, name)

        def counted(self: object, *arguments: Any, **options: Any) -> Any:
            made[cls.__name__] += 1
            return real(self, *arguments, **options)

        monkeypatch.setattr(cls, name, counted)

    def reading(path: Path, **options: Any) -> LlamaModel:
        made["files"] += 1
        return read(path, **options)

    read = LlamaModel.load
    monkeypatch.setattr(LlamaModel, "load", reading)
    count(LlamaModel, "pieces")
    count(Vocabulary, "__init__")
    count(ChatTemplate, "__init__")
    config = settings(tmp_path, f'[models.large]\nmodel = "{file}"\nload = "use"')
    once = {"files": 1, "LlamaModel": 1, "Vocabulary": 1, "ChatTemplate": 1}
    async with opened(config) as engines:
        assert made == once
        large = on_demand(engines, "large")
        await large.load()
        assert made == {**once, "files": 2}  # the second time for its weights


async def test_the_tokens_that_are_kept_are_counted_where_they_are_kept(tmp_path: Path) -> None:
    async with opened(settings(tmp_path)) as engines:
        small = on_demand(engines, "small")
        before = small.stats()
        small.encode(small.render([ChatMessage("user", "A text of its own")]))
        now = small.stats()
        assert now["tokenizer_misses_total"] == before["tokenizer_misses_total"] + 1
        assert now["token_cache_bytes"] > before["token_cache_bytes"]


async def test_a_model_whose_file_is_gone_is_told_to_clients_without_its_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone.gguf"
    gone.write_bytes(DRAFT_MODEL.read_bytes())
    config = settings(tmp_path, TWO.replace('"demo-chat"', f'"{gone}"'))
    async with opened(config) as engines:
        gone.unlink()
        with pytest.raises(ModelAway) as error:
            await on_demand(engines, "large").load()
        assert str(error.value) == "the model 'large' could not be loaded" and str(gone) in caplog.text
        assert engines.states["large"] == "not_loaded"
        gone.write_bytes(DRAFT_MODEL.read_bytes())
        assert engines.reload is not None and await engines.reload(lambda file: None, _nothing) == ["large"]
        await on_demand(engines, "large").load()


async def test_closing_ends_a_load_that_nobody_waits_for(tmp_path: Path) -> None:
    config = settings(tmp_path)
    async with opened(config) as engines:
        loading = asyncio.create_task(on_demand(engines, "large").load())
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("load:")]
