"""What is sealed for one tenant opens for nobody else, and not after a change."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.auth.secret import SEAL_PREFIX, Seals, Secret

TENANT, OTHER = UUID(int=1), UUID(int=2)
SEALS = Seals(Secret(b"a secret of the tests"))


@given(st.text(max_size=200))
def test_what_was_sealed_opens_again_and_never_looks_the_same(text: str) -> None:
    sealed = SEALS.close(TENANT, text)
    assert SEALS.open(TENANT, sealed) == text
    assert sealed != SEALS.close(TENANT, text)


def test_nobody_else_opens_it() -> None:
    sealed = SEALS.close(TENANT, "ours")
    assert SEALS.open(OTHER, sealed) is None
    assert Seals(Secret(b"another installation")).open(TENANT, sealed) is None


@given(st.integers(0, 10_000), st.sampled_from("Aa0_-="))
def test_a_changed_letter_is_noticed(at: int, letter: str) -> None:
    sealed = SEALS.close(TENANT, "The launch is on Tuesday.")
    at %= len(sealed)
    changed = sealed[:at] + letter + sealed[at + 1 :]
    assert changed == sealed or SEALS.open(TENANT, changed) is None


def test_a_last_letter_with_spare_bits_set_is_noticed() -> None:
    sealed = SEALS.close(TENANT, "1")
    assert sealed.endswith("=")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = len(sealed.rstrip("=")) - 1
    others = [sealed[:last] + letter + sealed[last + 1 :] for letter in letters if letter != sealed[last]]
    assert [SEALS.open(TENANT, other) for other in others] == [None] * 63


@pytest.mark.parametrize("sealed", ["", "x", SEAL_PREFIX, SEAL_PREFIX + "AAAA", "ü", "\0", "A" * 10_000])
def test_what_was_never_sealed_does_not_open(sealed: str) -> None:
    assert SEALS.open(TENANT, sealed) is None
