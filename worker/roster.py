"""The agents that this worker serves: the location of their file, and whether it is valid."""

from __future__ import annotations

from agents.roster import Roster
from agents.surface import USUAL
from agents.tools import NAMES
from worker.config import Config
from worker.errors import StartError
from worker.goodput import Targets
from worker.home import Home


def read_roster(config: Config) -> Roster:
    """No file in the home folder means no agents. Raises StartError, InvalidAgents."""
    path = config.agents or Home(config.home).agents_file
    try:
        return Roster.read(path)
    except FileNotFoundError:
        if config.agents is None:
            return Roster()
        raise StartError(f"there is no file {path} (--agents)") from None


async def list_agents(config: Config) -> None:
    """Print the agents. Raises StartError for those that no worker could serve."""
    roster = read_roster(config)
    for model, agent in zip(roster.models, roster.agents.values(), strict=True):
        searched = f"searches {', '.join(agent.search.stores)}" if agent.search else "searches nothing"
        tools = ", ".join(agent.tools) or "no tools"
        print(f"{model:<24} {tools}; {searched}; {agent.model or 'any model'}  {agent.description}".rstrip())
    surfaces = {**USUAL, **roster.surfaces}
    targets = Targets.parse(config.targets).with_those_of(surfaces).by_surface
    for name, surface in surfaces.items():
        target = targets.get(name, "no targets")
        print(f"{'surface ' + name:<24} {target}; {str(surface) or 'no limits of its own'}")
    if not roster.agents:
        print(f"no agents: define them in {config.agents or Home(config.home).agents_file}")
    if problems := roster.problems(NAMES):
        raise StartError(" ".join(problems))
