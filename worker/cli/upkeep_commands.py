"""`firsttoken migrate` and `reload`: bring the database, or a running worker, up to date."""

from __future__ import annotations

import asyncio
import os
import signal

import orjson

from inference.llama import model_name
from migrations.runner import migrate
from worker.config import Config
from worker.database import open_owner_dsn
from worker.engines.model_aliases import ModelAliases
from worker.engines.model_file import ModelFile, read_models
from worker.engines.retrieval_models import embedder_files
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.agent_files import check_names, read_agents


async def migrate_database(config: Config) -> None:
    Home(config.home).prepare()
    async with open_owner_dsn(config) as (owner_dsn, _):
        applied = await migrate(owner_dsn)
    print("\n".join(f"applied {version}" for version in applied) or "the database is up to date")


async def reload_models(config: Config) -> None:
    """Mistakes are reported here: the worker would only log them. Raises StartError, InvalidModels, InvalidAgents."""
    models = await asyncio.to_thread(read_models, config)
    if models is None:
        raise StartError("there is no models.toml in the home folder (--models), so there is nothing to reload")
    await asyncio.to_thread(_check_names, config, models)
    try:
        ready = orjson.loads(await asyncio.to_thread(Home(config.home).ready_file.read_bytes))
        os.kill(int(ready["pid"]), signal.SIGUSR1)
    except (FileNotFoundError, ProcessLookupError):
        raise StartError(
            "no worker is running with this home folder; the next one reads models.toml when it starts"
        ) from None
    except (PermissionError, ValueError, TypeError, KeyError) as error:
        raise StartError(f"the worker of this home folder cannot be signalled: {error}") from None
    print(f"The worker at {ready['url']} is reloading: {', '.join(models.models)}. Its log says when they are ready.")


def _check_names(config: Config, models: ModelFile) -> None:
    """Raises StartError if agents, surfaces or aliases name models that would be gone, InvalidAgents."""
    beside = [*map(model_name, embedder_files(config)), *([model_name(config.reranker)] if config.reranker else [])]
    aliases = ModelAliases.parse(config.alias or "").beside(models.aliases)
    check_names(read_agents(config), aliases, models.names, beside)
