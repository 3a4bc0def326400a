"""A secret is exchanged without signing anybody out: while two count, what either made is valid."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import pytest
from aiohttp import web

from migrations.pool import Database
from worker.auth.audit import Actor
from worker.auth.keys import Grant, Keys
from worker.auth.scope import USUAL
from worker.auth.secret import SIGNS_AFTER_S, Seals, Secret, SecretFile
from worker.auth.session import Claim, Sessions
from worker.home import Home

OLD, NEW = b"the old secret", b"the new secret"
BEFORE, BETWEEN, AFTER = Secret(OLD), Secret(NEW, OLD), Secret(NEW)


async def cookie(database: Database, tenant_id: UUID, secret: Secret) -> dict[str, str]:
    sessions, response = Sessions(database, secret), web.Response()
    await sessions.start(response, Grant("link_1", tenant_id, USUAL), Actor("link", "link_1"), "", secure=False)
    return {sessions.cookie_name: response.cookies[sessions.cookie_name].value}


def claimed(database: Database, secret: Secret, cookies: dict[str, str]) -> Claim | None:
    sessions = Sessions(database, secret)
    found = sessions.cookie(cookies)
    return sessions.read(found) if found else None


async def test_a_session_of_the_old_secret_lasts_until_that_is_dropped(database: Database, tenant_id: UUID) -> None:
    cookies = await cookie(database, tenant_id, BEFORE)
    claim = claimed(database, BETWEEN, cookies)
    assert claim is not None and claim.tenant_id == tenant_id
    assert claimed(database, AFTER, cookies) is None
    assert claimed(database, AFTER, await cookie(database, tenant_id, BETWEEN)) is not None


async def test_a_key_that_is_used_meanwhile_outlives_the_old_secret(database: Database, tenant_id: UUID) -> None:
    _, used = await Keys(database, BEFORE).create(tenant_id, "used")
    _, idle = await Keys(database, BEFORE).create(tenant_id, "idle")
    between, after = Keys(database, BETWEEN), Keys(database, AFTER)
    waiting = await between.of_other_secrets()
    assert await between.authenticate(used) is not None
    assert await between.of_other_secrets() == waiting - 1
    assert await after.authenticate(used) is not None
    assert await after.authenticate(idle) is None


async def test_a_link_of_the_old_secret_signs_in(database: Database, tenant_id: UUID) -> None:
    token = await Keys(database, BEFORE).create_link(tenant_id)
    assert await Keys(database, AFTER).redeem_link(token) is None
    grant = await Keys(database, BETWEEN).redeem_link(token)
    assert grant is not None and grant.tenant_id == tenant_id


def test_what_was_sealed_with_the_old_secret_opens_until_that_is_dropped(tenant_id: UUID) -> None:
    sealed = Seals(BEFORE).close(tenant_id, "ours")
    assert [Seals(secret).open(tenant_id, sealed) for secret in (BETWEEN, AFTER)] == ["ours", None]
    assert Seals(AFTER).open(tenant_id, Seals(BETWEEN).close(tenant_id, "ours")) == "ours"


def test_a_worker_takes_a_rotation_over_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    home.prepare()
    file = SecretFile(home)
    secret = Secret(*file.read(), source=file.read)
    signed = secret.sign("test", b"before")
    file.rotate()
    secret.reread()
    assert secret.verify("test", signed) == b"before"
    other = Secret(*file.read())
    assert other.verify("test", secret.sign("test", b"between")) == b"between"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + SIGNS_AFTER_S + 1)
    secret.reread()
    assert other.verify("test", secret.sign("test", b"after")) == b"after", "it knew the new one before it was used"
    assert secret.marks == other.marks[::-1]
    file.drop()
    secret.reread()
    assert secret.verify("test", signed) is None
    assert len(secret.marks) == 1


def test_a_cache_key_belongs_to_its_secret_its_purpose_and_its_value() -> None:
    secret = Secret(b"a" * 32)
    keys = {each.cache_key(*of) for each in (secret, Secret(b"b" * 32)) for of in (("x", "1"), ("x", "2"), ("y", "1"))}
    assert len(keys) == 6
    assert secret.cache_key("x", "1") in keys
