"""The commands about credentials: API keys, sign-in links, sessions, the secret, and the audit log of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import orjson
from pydantic import ValidationError

from agents.config_error import describe_error
from worker.auth.audit import Act, AuditLog, note
from worker.auth.keys import LOCAL_TENANT, ApiKey, Keys, sign_in_link
from worker.auth.principal import KeyLimits
from worker.auth.scope import ALL, USUAL, Scope
from worker.auth.secret import SIGNS_AFTER_S, SecretFile
from worker.auth.session import Sessions
from worker.cli.tenant import checked, command_actor, known_tenant, open_home, tenant_of
from worker.config import Config
from worker.errors import StartError
from worker.home import Home

TIME_FORMAT = "%Y-%m-%d %H:%M"


async def create_key(
    config: Config,
    *,
    name: str,
    tenant: str,
    scopes: Sequence[Scope],
    operator: bool,
    days: int | None,
    budget: Sequence[tuple[str, int | float | str]],
) -> None:
    bounds = _bounds(budget)
    async with open_home(config, new=True) as (database, secret):
        keys = Keys(database, secret)
        tenant_id = await tenant_of(keys, tenant)
        expires_at = datetime.now(UTC) + timedelta(days=days) if days else None
        granted = (frozenset(scopes) or USUAL) | ({Scope.OPS} if operator else frozenset())
        name = checked(name, "the key's name")
        id, key = await keys.create(
            tenant_id, name, scopes=granted, expires_at=expires_at, bounds=bounds, by=command_actor()
        )
    print(f"{key}\n\n{id} of tenant {tenant}. Save the key now: it is not shown again.")


async def keys_of(config: Config, tenant: str) -> list[ApiKey]:
    async with open_home(config) as (database, secret):
        keys = Keys(database, secret)
        return await keys.list(await known_tenant(keys, tenant))


async def list_keys(config: Config, *, tenant: str) -> None:
    found = await keys_of(config, tenant)
    for key in found:
        used = _used(key.last_used_at)
        scopes = ",".join(sorted(key.scopes)) or "-"
        made = key.created_at.strftime(TIME_FORMAT)
        bounds = "".join(f"  {bound}={_shown(value)}" for bound, value in key.bounds.items())
        print(f"{key.id}  {key.hint}…  {key.state:<8} {scopes:<21} created {made}  {used:<21}  {key.name}{bounds}")
    if not found:
        print(f"tenant {tenant} has no keys")


async def revoke_key(config: Config, *, id: str, tenant: str) -> None:
    async with open_home(config) as (database, secret):
        keys = Keys(database, secret)
        if not await keys.revoke(await known_tenant(keys, tenant), id, by=command_actor()):
            raise StartError(f"tenant {tenant} has no key {id}: see `firsttoken keys list --tenant {tenant}`")
    print(f"{id} is revoked")


async def show_link(config: Config, *, url: str | None) -> None:
    address = url or _address_of_worker(config)
    async with open_home(config) as (database, secret):
        keys = Keys(database, secret)
        token = await keys.create_link(await keys.tenant(LOCAL_TENANT), scopes=ALL, by=command_actor())
    print(sign_in_link(address.rstrip("/"), token))


async def list_sessions(config: Config, *, tenant: str) -> None:
    async with open_home(config) as (database, secret):
        tenant_id = await known_tenant(Keys(database, secret), tenant)
        found = await Sessions(database, secret).list(tenant_id)
    for session in found:
        used = _used(session.last_used_at)
        made, ends = session.created_at.strftime(TIME_FORMAT), session.expires_at.strftime(TIME_FORMAT)
        print(f"{session.id}  created {made}  {used:<21}  expires {ends}  {session.address or '-'}  {session.agent}")
    if not found:
        print(f"no browser of tenant {tenant} is signed in")


async def revoke_session(config: Config, *, id: str, tenant: str) -> None:
    async with open_home(config) as (database, secret):
        tenant_id = await known_tenant(Keys(database, secret), tenant)
        if not await Sessions(database, secret).revoke(tenant_id, id, by=command_actor()):
            raise StartError(f"tenant {tenant} has no session {id}: see `firsttoken sessions list --tenant {tenant}`")
    print(f"{id} is revoked")


async def rotate_secret(config: Config) -> None:
    file = _secret_file(config)
    async with open_home(config) as (database, secret):
        tenant_id = await Keys(database, secret).tenant(LOCAL_TENANT)
        async with database.tenant(tenant_id) as connection:  # the audit entry stands only if the file was written
            await note(connection, tenant_id, command_actor(), Act.SECRET_ROTATED, secret.marks[0])
            file.rotate()
    print(
        f"Both secrets are valid now, and the new one signs from {SIGNS_AFTER_S:.0f} s on. The old one stays valid"
        " until `firsttoken secret drop`. Sessions expire within 30 days, and keys move to the new one when used."
    )


async def drop_secret(config: Config, *, force: bool) -> None:
    file = _secret_file(config)
    async with open_home(config) as (database, secret):
        keys = Keys(database, secret)
        count = await keys.of_other_secrets()
        if count and not force:
            raise StartError(
                f"keys that were not used since the rotation would stop working ({count}): use or revoke them, or drop "
                "the secret anyway with --force"
            )
        tenant_id = await keys.tenant(LOCAL_TENANT)
        async with database.tenant(tenant_id) as connection:
            await note(connection, tenant_id, command_actor(), Act.SECRET_DROPPED, secret.marks[-1], keys=count)
            file.drop()
    print("the old secret is no longer valid")


async def show_audit(config: Config, *, tenant: str, limit: int, as_json: bool) -> None:
    async with open_home(config) as (database, secret):
        tenant_id = await known_tenant(Keys(database, secret), tenant)
        found = await AuditLog(database).list(tenant_id, limit=limit)
    for each in reversed(found):
        if as_json:
            print(orjson.dumps(each).decode())
            continue
        who = f"{each.actor.via} {each.actor.subject} {each.actor.address or '-'}"
        detail = " ".join(f"{name}={value}" for name, value in each.detail.items())
        print(f"{each.at:{TIME_FORMAT}:%S}  {each.act:<20} {each.object}  by {who}  {detail}".rstrip())


def _secret_file(config: Config) -> SecretFile:
    if config.secret:
        raise StartError(
            "the secret comes from --secret: give the new one to all workers as --secret-before, then swap the "
            "two, and remove the old one when nothing needs it any more"
        )
    return SecretFile(Home(config.home))


def _used(at: datetime | None) -> str:
    return f"used {at.strftime(TIME_FORMAT)}" if at else "never used"


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _bounds(budget: Sequence[tuple[str, int | float | str]]) -> KeyLimits | None:
    try:
        return KeyLimits.model_validate(dict(budget)) if budget else None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        known = [field.alias or name for name, field in KeyLimits.model_fields.items()]
        told = describe_error(problem, known)
        raise StartError(f"--budget {problem['loc'][0]}: {told} (known budgets: {', '.join(known)})") from None


def _address_of_worker(config: Config) -> str:
    """Where the worker that started last in this home listens."""
    try:
        return str(orjson.loads(Home(config.home).ready_file.read_bytes())["url"])
    except (OSError, ValueError, LookupError, TypeError):  # no worker, or an unrelated file
        raise StartError(
            "no worker was ever started with this home folder: start one with `firsttoken serve`, "
            "or give its URL with --url"
        ) from None
