"""The names by which models are known, and whether whatever refers to them exists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from agents.definition import AgentRegistry
from inference.errors import ModelNotLoaded
from inference.llama import model_name
from inference.provisioning.catalogue import find, names_of
from worker.config import Config
from worker.engines.engine_config import embedder_files
from worker.engines.model_aliases import ModelAliases
from worker.engines.model_file import ModelFile
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.agent_files import read_agents


def check_files(config: Config, models: ModelFile) -> None:
    """What a worker would find in them at its start, without one. Raises StartError if agents, surfaces or aliases name
    models that would not be there, or a model has no file; InvalidAgents."""
    for name, table in models.models.items():
        try:
            find(table.applied(config).model, Home(config.home).models) if table.engines is None else None
        except ModelNotLoaded as error:
            raise StartError(f"models.{name}.model: {error} (--models)") from None
    beside = [*map(model_name, embedder_files(config)), *([model_name(config.reranker)] if config.reranker else [])]
    names_at_work(config, read_agents(config), models.aliases, models.names, beside, files={})


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
