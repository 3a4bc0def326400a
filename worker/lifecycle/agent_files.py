"""Reads the file of agents, and checks the names in the operator's files against the models that there are."""

from __future__ import annotations

from collections.abc import Collection

from agents.definition import AgentRegistry
from inference.errors import ModelNotLoaded
from inference.llama import model_name
from inference.provisioning.catalogue import find
from worker.config import Config
from worker.engines.engine_config import embedder_files
from worker.engines.model_aliases import ModelAliases
from worker.engines.model_file import ModelFile
from worker.errors import StartError
from worker.home import Home


def read_agents(config: Config) -> AgentRegistry:
    """A missing file in the home folder means no agents. Raises StartError, InvalidAgents."""
    path = config.agents or Home(config.home).agents_file
    try:
        return AgentRegistry.read(path)
    except FileNotFoundError:
        if config.agents is None:
            return AgentRegistry()
        raise StartError(f"there is no file {path} (--agents)") from None


def check_names(
    agent_registry: AgentRegistry,
    aliases: ModelAliases,
    models: Collection[str],
    beside: Collection[str],
    tools: Collection[str] | None = None,
) -> None:
    """Raises StartError if agents, surfaces or aliases refer to something that does not exist. `models` may include
    routes; `beside` are the embedders and the reranker; `tools` is None when they are not known here."""
    if tools is None:
        tools = {tool for agent in agent_registry.agents.values() for tool in agent.tools}
    served = [*models, *agent_registry.models, *beside]
    if problems := [*agent_registry.problems(tools, models), *aliases.problems(served)]:
        raise StartError(" ".join(problems))


def check_files(config: Config, models: ModelFile) -> None:
    """What a worker would find in them at its start, without one. Raises StartError if agents, surfaces or aliases name
    models that would not be there, or a model has no file; InvalidAgents."""
    for name, table in models.models.items():
        try:
            find(table.applied(config).model, Home(config.home).models) if table.engines is None else None
        except ModelNotLoaded as error:
            raise StartError(f"models.{name}.model: {error} (--models)") from None
    beside = [*map(model_name, embedder_files(config)), *([model_name(config.reranker)] if config.reranker else [])]
    aliases = ModelAliases.parse(config.alias or "").beside(models.aliases)
    check_names(read_agents(config), aliases, models.names, beside)
