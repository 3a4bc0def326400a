"""Which connections are kept for whoever asks after a pause."""

from __future__ import annotations

import pytest

from migrations.embedded import EmbeddedPostgres
from migrations.pool import _is_local


def test_the_embedded_server_is_local(postgres: EmbeddedPostgres) -> None:
    assert _is_local(postgres.app_dsn)


@pytest.mark.parametrize(
    ("dsn", "local"),
    [
        ("postgresql:///firsttoken", False),
        ("postgresql://me@/firsttoken?host=/var/run/postgresql", True),
        ("postgresql://me@db.example/firsttoken", False),
        ("postgresql://me@/firsttoken?host=db.example", False),
        ("postgresql://me@10.0.0.7:5433/firsttoken?sslmode=require", False),
    ],
)
def test_only_sockets_of_this_machine_are_local(dsn: str, local: bool) -> None:
    assert _is_local(dsn) is local
