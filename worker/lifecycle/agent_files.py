"""Reads the file of agents, and checks its names against the models at work."""

from __future__ import annotations

from collections.abc import Collection

from agents.definition import AgentRegistry
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
