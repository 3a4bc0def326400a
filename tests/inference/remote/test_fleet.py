"""Which engine computes a request."""

from __future__ import annotations

from collections import Counter

from inference.remote.fleet import SESSION_TOKENS, EngineInfo, Fleet, session_of

SESSIONS = [session_of([number] * SESSION_TOKENS, "tenant") for number in range(300)]


def fleet(count: int, *, ours: bool = True) -> Fleet:
    found = Fleet([f"http://engine{number}" for number in range(count)])
    for upstream in found.upstreams:
        upstream.facts, upstream.away = EngineInfo(ours=ours), None
    return found


def places(engines: Fleet) -> dict[bytes, str]:
    picked = {session: engines.pick(session) for session in SESSIONS}
    return {session: upstream.url for session, upstream in picked.items() if upstream}


def test_sessions_spread_over_the_engines_and_stay_where_they_are() -> None:
    engines = fleet(3)
    assert places(engines) == places(engines)
    assert min(Counter(places(engines).values()).values()) > 60


def test_an_engine_that_is_gone_moves_its_own_sessions_only() -> None:
    engines = fleet(3)
    before = places(engines)
    engines.upstreams[1].away = "gone"
    after = places(engines)
    moved = {session for session in SESSIONS if before[session] != after[session]}
    assert moved == {session for session in SESSIONS if before[session] == "http://engine1"}


def test_an_engine_far_above_the_mean_is_passed_over() -> None:
    engines = fleet(3)
    first = engines.pick(SESSIONS[0])
    assert first is not None
    first.streams = 4
    assert engines.pick(SESSIONS[0]) is not first
    for upstream in engines.upstreams:
        upstream.streams = 4
    assert engines.pick(SESSIONS[0]) is first


def test_engines_that_are_away_unknown_or_tried_are_not_picked() -> None:
    assert Fleet(["http://engine"]).pick(SESSIONS[0]) is None
    engines = fleet(1)
    assert engines.pick(SESSIONS[0], engines.upstreams) is None
    assert fleet(2, ours=False).pick(SESSIONS[0], ours=True) is None


def test_a_session_is_its_tenant_and_how_it_begins() -> None:
    prompt = list(range(SESSION_TOKENS))
    assert session_of(prompt, "one") == session_of([*prompt, 5, 6], "one")
    assert session_of(prompt, "one") != session_of(prompt, "two") != session_of([1, *prompt[1:]], "two")
