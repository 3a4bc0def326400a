"""The home and the tenant that a command is about, and who gave the command."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from migrations.pool import Database
from worker.auth.audit import Actor
from worker.auth.keys import LOCAL_TENANT, Keys
from worker.auth.principal import NOBODY, Principal
from worker.auth.scope import Scope
from worker.auth.secret import Secret, read_secret
from worker.config import Config
from worker.database import open_database
from worker.errors import StartError
from worker.home import Home

NAME_CHARS_MAX = 200


@asynccontextmanager
async def open_home(config: Config, *, new: bool = False) -> AsyncIterator[tuple[Database, Secret]]:
    """The database of the home folder, and its secret. Unless it may be `new`, nothing is created in a folder where
    none is: it is mistyped, or that of another user. Raises StartError."""
    home = Home(config.home)
    if not new and config.database_url is None and not home.has_database:
        raise StartError(f"no worker was ever started with the home folder {config.home}: choose its own with --home")
    home.prepare()
    async with open_database(config) as database:
        yield database, read_secret(config, home)


@asynccontextmanager
async def open_tenant(config: Config, name: str) -> AsyncIterator[tuple[Database, UUID]]:
    """The database of the home folder, and an existing tenant. Raises StartError."""
    async with open_home(config) as (database, secret):
        keys = Keys(database, secret)
        yield database, await (keys.tenant(name) if name == LOCAL_TENANT else known_tenant(keys, name))


async def tenant_of(keys: Keys, name: str) -> UUID:
    """The tenant of that name, created if it is new. Raises StartError."""
    return await keys.tenant(checked(name, "the tenant's name"))


async def known_tenant(keys: Keys, name: str) -> UUID:
    """For read-only commands: a mistyped name creates no tenant. Raises StartError."""
    tenant_id = await keys.known_tenant(checked(name, "the tenant's name"))
    if tenant_id is None:
        raise StartError(f"there is no tenant {name} (--tenant); a tenant is created with its first key or sign-in")
    return tenant_id


def checked(name: str, what: str) -> str:
    """The name. Raises StartError if it is too long or empty."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise StartError(f"{what} must have 1 to {NAME_CHARS_MAX} characters")
    return name


EVERYBODY = Principal(NOBODY, "command", frozenset({Scope.OPS}), "api_key")


def command_actor() -> Actor:
    """The account on this machine, whatever the environment says."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as an account without a name
        name = f"uid {os.getuid()}"
    return Actor("command", name)
