"""Reads the file of agents."""

from __future__ import annotations

from agents.definition import AgentRegistry
from worker.config import Config
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
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror} (--agents)") from error
