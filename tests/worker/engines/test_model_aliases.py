"""Further names of models, through every address that takes a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.definition import AgentRegistry, Definition
from inference.provisioning.catalogue import names_of
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, get, post, services_with
from tests.worker.sharing import signed_in
from worker.config import Config
from worker.engines.model_aliases import ALIASES_MAX, ModelAliases
from worker.setting import ConfigError

ASK = [{"role": "user", "content": "hello"}]


def test_names_are_read_in_pairs() -> None:
    aliases = ModelAliases.parse(" gpt-4o=demo-chat , meta/llama:3=agent/support,")
    assert aliases.by_name == {"gpt-4o": "demo-chat", "meta/llama:3": "agent/support"}
    assert (aliases.model_of("gpt-4o"), aliases.model_of("other")) == ("demo-chat", "other")


@pytest.mark.parametrize(
    "text", ["gpt-4o", "=demo-chat", "gpt 4=x", "a=", "a=x,a=y", ",".join(f"a{n}=x" for n in range(ALIASES_MAX + 1))]
)
def test_a_setting_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--alias"):
        Config(alias=text)


def test_a_name_that_reaches_nothing_or_hides_a_model_is_a_problem() -> None:
    problems = ModelAliases.parse("gpt-4o=demo-chat,a=nothing,demo-chat=minilm").problems(["demo-chat", "minilm"])
    assert [problem.split()[2] for problem in problems] == ["demo-chat", "a"]


async def test_a_request_reaches_the_model_that_a_name_stands_for(database: Database) -> None:
    agent_registry = AgentRegistry({"helper": Definition(instructions="Be of help.")})
    aliases = ModelAliases.parse("gpt-4o=scripted,assistant=agent/helper,text-embedding-3-small=embedder")
    model = ScriptedModel(["Hello."], name=MODEL)
    services = replace(services_with(database, model), agent_registry=agent_registry, aliases=aliases)
    async with signed_in(database, services) as client:
        told: dict[str, Any] = await post(client, "/v1/chat/completions", {"model": "gpt-4o", "messages": ASK})
        helped = await post(client, "/v1/responses", {"model": "assistant", "input": "hello"})
        absent = await post(client, "/v1/responses", {"model": "gpt-5", "input": "hello"}, 404)
        wrong = {"model": "text-embedding-3-small", "input": "hello", "dimensions": 4}
        dimensions = await post(client, "/v1/embeddings", wrong, 400)
        models = {each["id"]: each for each in (await get(client, "/v1/models"))["data"]}
    assert (told["model"], helped["model"]) == (MODEL, "agent/helper")
    assert "Be of help." in model.prompts[1]
    assert "gpt-4o, assistant" in absent["error"]["message"]
    assert dimensions["error"]["param"] == "dimensions"  # of the model: it was found
    assert list(models) == [MODEL, "agent/helper", "embedder", *aliases.by_name]
    assert {name: models[name]["root"] for name in aliases.by_name} == aliases.by_name
    assert models["gpt-4o"]["context_length"] == models["gpt-4o"]["max_model_len"] == model.context_length
    assert models["text-embedding-3-small"]["capabilities"] == ["embeddings"]


async def test_a_model_answers_to_the_names_of_its_file_in_any_capitals(database: Database) -> None:
    """All addresses that take a model do, and the list has the names."""
    of_file = names_of(Path("models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    aliases = ModelAliases({"gpt-4o": MODEL}).completed([MODEL, "embedder"], {MODEL: of_file})
    services = replace(services_with(database, ScriptedModel(["Hello."], name=MODEL)), aliases=aliases)
    async with signed_in(database, services) as client:
        for name in (*of_file, "SMOLLM2-135M", "smollm2-135m-instruct.q4_1", "GPT-4o", MODEL.upper()):
            assert (await post(client, "/v1/chat/completions", {"model": name, "messages": ASK}))["model"] == MODEL
            assert (await get(client, f"/v1/models/{name}"))["root"] == MODEL
        await post(client, "/v1/embeddings", {"model": "Embedder", "input": "hello", "dimensions": 4}, 400)
        absent = await post(client, "/v1/responses", {"model": "smollm2", "input": "hello"}, 404)
        models = {each["id"]: each for each in (await get(client, "/v1/models"))["data"]}
    assert absent["error"]["message"].endswith(f"Available: {MODEL}, gpt-4o.")
    assert of_file == ["smollm2-135m", "SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf"]
    assert models[MODEL]["aliases"] == ["gpt-4o", *of_file]


def test_a_name_that_could_mean_two_models_means_none_unless_it_is_written_exactly() -> None:
    files = {"one": ["same", "One-Q4"], "two": ["same", "ALPHA"], "Alpha": ["alpha-q8"]}
    aliases = ModelAliases({"B": "one", "b": "two"}).completed(["one", "two", "Alpha"], files)
    reached = {name: aliases.model_of(name) for name in ("same", "one-q4", "B", "b", "alpha", "ALPHA", "Two")}
    assert reached == {
        "same": "same",
        "one-q4": "one",
        "B": "one",
        "b": "two",
        "alpha": "Alpha",
        "ALPHA": "Alpha",
        "Two": "two",
    }
