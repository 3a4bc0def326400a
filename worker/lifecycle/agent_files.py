"""Reads the file of agents, and checks the names in it, and those of aliases, against the models at work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from agents.definition import AgentRegistry
from inference.provisioning.catalogue import names_of
from worker.config import Config
from worker.engines.model_aliases import ModelAliases
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
