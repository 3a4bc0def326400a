"""The names by which models are known, and whether whatever refers to them exists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from agents.definition import AgentRegistry
from agents.tools import NAMES
from inference.errors import ModelNotLoaded
from inference.llama import model_name
from inference.provisioning.catalogue import SMOL_CHAT, find, names_of
from worker.config import Config
from worker.engines.engine_config import embedder_files, found, is_fetched, load_for, read_token, versions
from worker.engines.model_aliases import ModelAliases
from worker.engines.model_file import read_models
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.agent_files import read_agents


def check_files(config: Config) -> None:
    """What a start would find in the files that the settings name, found in milliseconds, before a model is loaded.
    Raises StartError if one does not exist, or refers to something that would not be there; InvalidAgents,
    InvalidModels."""
    agent_registry, file = read_agents(config), read_models(config)
    if file is None:
        models, aliases = [load_for("--model", _model, config)], dict[str, str]()
    else:
        models, aliases = file.names, file.aliases
        for name, table in file.models.items():
            try:
                _model(table.applied(config))
            except ModelNotLoaded as error:
                raise StartError(f"models.{name}.model: {error} (--models)") from None
    if config.engines is not None or (file and file.elsewhere()):
        read_token(config)
    beside = list(map(model_name, embedder_files(config)))
    if config.reranker is not None:
        beside.append(model_name(found("--reranker", config.reranker, config)))
    names_at_work(config, agent_registry, aliases, models, beside, files={}, tools=NAMES)


def _model(config: Config) -> str:
    """The name of the model that these settings describe. Raises ModelNotLoaded if a file of it is not here and will
    not be fetched."""
    if is_fetched(config):
        return SMOL_CHAT.name
    path = find(config.model, Home(config.home).models)
    if config.engines is None:
        versions(config)
    return model_name(path)


def names_at_work(
    config: Config,
    agent_registry: AgentRegistry,
    aliases: Mapping[str, str],
    models: Collection[str],
    beside: Collection[str],
    *,
    files: Mapping[str, Path],
    tools: Collection[str] | None = None,
) -> ModelAliases:
    """The further names of models: of --alias, the `aliases` of models.toml, and those of the models' `files`.

    `models` may include routes; `beside` are the embedders and the reranker; `tools` is None when they are not known
    here. Raises StartError if agents, surfaces or aliases refer to something that does not exist.
    """
    if tools is None:
        tools = {tool for agent in agent_registry.agents.values() for tool in agent.tools}
    given = ModelAliases.parse(config.alias or "").beside(aliases)
    served = [*models, *agent_registry.models, *beside]
    if problems := [*agent_registry.problems(tools, models), *given.problems(served)]:
        raise StartError(" ".join(problems))
    return given.completed(served, {model: names_of(path) for model, path in files.items()})
