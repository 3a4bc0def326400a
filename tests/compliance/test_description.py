"""/openapi.json describes every route, and what is sent and refused by its word is answered by its word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from tests.serving import Worker
from tests.worker.cli.test_main import firsttoken
from worker.app import RESOURCES
from worker.auth.scope import Scope
from worker.routes.openapi import Operation, document, operations

# Of each operation: one that is right, one that is wrong and one more. To make up large bodies is what takes long.
EXAMPLES = [3, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
TIMEOUT_S = 60
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# What would take long is cut short where a body has such a field: the question is what is taken, not what is answered.
SHORT: Mapping[str, Any] = {
    "max_output_tokens": 4,
    "max_tokens": 4,
    "max_completion_tokens": None,
    "background": False,
    "n": 1,
}


def routed() -> list[Operation]:
    app = web.Application()
    for resource in RESOURCES:
        app.add_routes(resource.routes)
    return operations(app.router.routes())


DOCUMENT = document(routed(), "0")
# The pages answer everybody with a page.
PUBLIC = {f"{each.method} {each.path}": each for each in routed() if not each.handler.__module__.endswith(".pages")}
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
SCHEMA.config.generation.allow_x00 = False  # such text is refused before anything else, which other tests look at


def test_the_document_is_valid() -> None:
    assert [error.message for error in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)] == []


def test_the_worker_serves_it_to_everybody(server: Mapping[str, Any]) -> None:
    served = httpx.get(f"{server['url']}/openapi.json").json()
    assert served["paths"] == DOCUMENT["paths"]
    assert served["info"]["version"] == server["version"]


def test_every_route_is_in_it_once() -> None:
    told = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]
    assert sorted(told) == sorted((each.path, each.method.lower()) for each in routed())
    ids = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_every_route_that_reads_a_body_says_which() -> None:
    """Its second parameter says it, or `takes=Model` above it."""
    silent = [
        f"{each.method} {each.path}: {each.handler.__module__}.{each.handler.__name__}"
        for each in routed()
        if {"parse", "parsed", "read_request"} & {*each.handler.__wrapped__.__code__.co_names}
        and not (each.described.takes or each.described.form or each.described.query)
    ]
    assert silent == []


@pytest.fixture(scope="module")
def headers(server: Mapping[str, Any], server_worker: Worker) -> dict[str, str]:
    """Of a tenant of its own, who may do everything: what is made here is in nobody's way."""
    scopes = [f"--scope={scope}" for scope in Scope]
    home = str(server_worker.log.parent)
    made = firsttoken("keys", "create", "all", "--tenant", "described", *scopes, "--home", home)
    return {"Authorization": f"Bearer {made.stdout.split()[0]}"}


@pytest.mark.any_answer("here the question is which requests are taken")
@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_what_the_document_says_is_so(
    server: Mapping[str, Any], headers: dict[str, str], name: str, examples: int
) -> None:
    told = PUBLIC[name]
    operation = SCHEMA[told.path][told.method]
    fields = told.described.takes.model_fields if told.described.takes else {}
    short = {name: value for name, value in SHORT.items() if name in fields}
    modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(modes))
    def check(case: Case[Any]) -> None:
        if isinstance(case.body, dict):
            case.body = {**case.body, **short}
        case.call_and_validate(base_url=server["url"], headers=headers, checks=CHECKS, timeout=TIMEOUT_S)

    check()
