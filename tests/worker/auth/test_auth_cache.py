"""Who was let in is checked again, all at once; what ended meanwhile opens nothing and goes on with nothing."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from tests.agents.turns import TENANT
from worker.auth import authenticator as module
from worker.auth.authenticator import CACHE_S, IDLE_S, RECHECK_S, AuthCache
from worker.auth.principal import Principal, Via
from worker.auth.scope import USUAL

FOREVER = float("inf")


def principal(subject: str, via: Via = "api_key", tenant_id: UUID = TENANT) -> Principal:
    return Principal(tenant_id, subject, USUAL, via)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved by a test."""
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0]))
    return now


def letting_in(*subjects: str) -> AuthCache:
    auth_cache = AuthCache()
    for subject in subjects:
        auth_cache.put(subject.encode(), principal(subject), FOREVER)
    return auth_cache


def test_what_is_promised_holds_with_room_for_a_check_that_fails() -> None:
    assert 2 * RECHECK_S < CACHE_S <= 30


def test_who_still_counts_needs_no_other_look_for_as_long_as_it_is_checked(clock: list[float]) -> None:
    auth_cache = letting_in("key_1")
    for _ in range(20):
        clock[0] += RECHECK_S
        subjects, used = auth_cache.to_check()
        assert (subjects, used) == ({"key_1"}, {"key_1"})
        auth_cache.checked(subjects, {"key_1"}, clock[0])
        assert auth_cache.get(b"key_1") == principal("key_1")


def test_who_does_not_count_any_more_is_let_in_no_more_and_stopped(clock: list[float]) -> None:
    auth_cache, ended = letting_in("key_1", "key_2"), list[str]()
    with (
        auth_cache.revocable(principal("key_1"), lambda: ended.append("key_1")),
        auth_cache.revocable(principal("key_2"), lambda: ended.append("key_2")),
    ):
        auth_cache.checked({"key_1", "key_2"}, {"key_2"}, clock[0])
        assert ended == ["key_1"]
    assert (auth_cache.get(b"key_1"), auth_cache.get(b"key_2")) == (None, principal("key_2"))


def test_without_a_check_everybody_is_asked_again(clock: list[float]) -> None:
    auth_cache = letting_in("key_1")
    clock[0] += CACHE_S
    assert auth_cache.get(b"key_1") is None


def test_a_credential_that_expires_does_not_outlive_that_in_the_cache(clock: list[float]) -> None:
    auth_cache = AuthCache()
    auth_cache.put(b"key_1", principal("key_1"), clock[0] + 5)
    auth_cache.checked({"key_1"}, {"key_1"}, clock[0])
    clock[0] += 5
    assert auth_cache.get(b"key_1") is None


def test_who_is_being_answered_is_checked_however_long_ago_it_was_let_in(clock: list[float]) -> None:
    auth_cache = letting_in("key_1")
    with auth_cache.revocable(principal("key_1"), lambda: None):
        clock[0] += IDLE_S + 1
        assert auth_cache.to_check() == ({"key_1"}, set())
        assert repr(auth_cache) == "<AuthCache 0 of 10000 | 1 being answered>"
    assert auth_cache.to_check() == (set(), set())
    assert repr(auth_cache) == "<AuthCache 0 of 10000 | 0 being answered>"


def test_a_jwt_is_not_asked_about_whatever_its_subject_is_called(clock: list[float]) -> None:
    auth_cache, ended = AuthCache(), list[str]()
    auth_cache.put(b"token", principal("key_1", "jwt"), FOREVER)
    with auth_cache.revocable(principal("key_1", "jwt"), lambda: ended.append("jwt")):
        assert auth_cache.to_check() == (set(), set())
        auth_cache.end({"key_1"})
    assert ended == []


def test_so_many_are_kept(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_MAX", 2)
    auth_cache = letting_in("a", "b", "c")
    assert [auth_cache.get(mark) is not None for mark in (b"a", b"b", b"c")] == [False, True, True]
