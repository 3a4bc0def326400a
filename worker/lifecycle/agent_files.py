"""Reads and checks the configuration files of agents and models, and prints the agents."""

from __future__ import annotations

from collections.abc import Collection

from agents.agent_registry import AgentRegistry
from agents.routing.policy import described
from agents.surface import USUAL
from agents.tools import NAMES
from worker.config import Config
from worker.engines.model_aliases import ModelAliases
from worker.engines.model_file import ModelFile, read_models
from worker.errors import StartError
from worker.home import Home
from worker.telemetry.goodput import Targets


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


def _model_of(name: str | None, models: ModelFile | None) -> str:
    """The name of a model; for a route also its policy."""
    if name is None:
        return "any model"
    return f"{name} ({described(models.routes[name])})" if models and name in models.routes else name


def _list_models(models: ModelFile) -> None:
    for name, table in models.models.items():
        where = f"engines at {table.engines}" if table.engines else f"loaded at {table.load}"
        price = f"{table.price.engine_second:g} per second of its engine"
        print(f"{'model ' + name:<24} {table.model or 'the bundled model'}; {where}; {price}")
    for name, policy in models.routes.items():
        print(f"{'route ' + name:<24} {policy.policy}: {described(policy)}")
    for name, model in models.aliases.items():
        print(f"{'alias ' + name:<24} {model}")


async def list_agents(config: Config) -> None:
    """Print the agents. Raises StartError for agents that no worker could serve."""
    agent_registry, models = read_agents(config), read_models(config)
    for model, agent in zip(agent_registry.models, agent_registry.agents.values(), strict=True):
        searched = f"searches {', '.join(agent.search.stores)}" if agent.search else "searches nothing"
        tools = ", ".join(agent.tools) or "no tools"
        print(f"{model:<24} {tools}; {searched}; {_model_of(agent.model, models)}  {agent.description}".rstrip())
    surfaces = {**USUAL, **agent_registry.surfaces}
    targets = Targets.parse(config.targets).with_those_of(surfaces).by_surface
    for name, surface in surfaces.items():
        target = targets.get(name, "no targets")
        print(f"{'surface ' + name:<24} {target}; {str(surface) or 'no limits of its own'}")
    if not agent_registry.agents:
        print(f"no agents: define them in {config.agents or Home(config.home).agents_file}")
    if models:
        _list_models(models)
    if problems := agent_registry.problems(NAMES, models.names if models else None):
        raise StartError(" ".join(problems))
