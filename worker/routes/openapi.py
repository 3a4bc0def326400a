"""/openapi.json: the OpenAPI 3.1 description of every route of this worker, generated from the routes and the models of
their bodies, for programs that make clients, tests and pages of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from inspect import getdoc
from typing import Any, TypeAlias

import orjson
from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from worker.auth.scope import Scope
from worker.config import VERSION
from worker.http.request import EVERYBODY, JSON, VISITORS, RouteDocs, Routes, Schema, access_of, json_bytes

routes = Routes()
OPENAPI = "3.1.0"
APPS_MAX = 4  # described in a process: of the worker there is one
COMPONENTS = "#/components/schemas/{model}"
Models: TypeAlias = Mapping[type[BaseModel], Schema]  # where each is described
BEARER = "credentials"
PLACE = re.compile(r"\{(\w+)\}")
NULLABLE_TEXT = {"type": ["string", "null"]}
TOLD = {"message": {"type": "string"}, "type": {"type": "string"}, "param": NULLABLE_TEXT, "code": NULLABLE_TEXT}
ERROR: Schema = {
    "type": "object",
    "properties": {"error": {"type": "object", "properties": TOLD, "required": ["message", "type"]}},
    "required": ["error"],
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, and its handler."""

    method: str
    path: str
    handler: Any

    @property
    def described(self) -> RouteDocs:
        described: RouteDocs = self.handler.described
        return described

    def object(self, models: Models) -> Schema:
        about = getdoc(self.handler)
        return {
            "operationId": "_".join(re.findall(r"\w+", f"{self.method.lower()} {self.path}")),
            "summary": self.handler.__name__.replace("_", " ").capitalize(),
            **({"description": about} if about else {}),
            "tags": [self.handler.__module__.rpartition(".")[2]],
            "security": self._security,
            "parameters": [*self._places, *self._query],
            **self._body(models),
            "responses": self._answers,
        }

    @property
    def _security(self) -> list[Schema]:
        """Any one of these grants access. The names are scopes."""
        access = access_of(self.handler)
        if access is None or access == EVERYBODY:
            return []
        if access == VISITORS:
            return [{}, {BEARER: []}]
        return [{BEARER: [str(scope)]} for scope in Scope if scope in access.scopes]

    @property
    def _places(self) -> Iterator[Schema]:
        for name in PLACE.findall(self.path):
            yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}

    @property
    def _query(self) -> Iterator[Schema]:
        query = self.described.query.model_json_schema() if self.described.query else {"properties": {}}
        for name, schema in query["properties"].items():
            yield {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": schema}

    def _body(self, models: Models) -> Schema:
        said = self.described
        if said.takes is not None:
            return {"requestBody": {"required": True, "content": {JSON: {"schema": models[said.takes]}}}}
        if said.form:
            form = {"type": "object", "properties": dict(said.form), "required": list(said.form)}
            return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}
        return {}

    @property
    def _answers(self) -> Schema:
        said = self.described
        content = {kind: {"schema": {"type": "object"}} if kind == JSON else {} for kind in said.tells}
        answer: Schema = {"description": HTTPStatus(said.status).phrase, **({"content": content} if content else {})}
        refusals = {status: {"$ref": f"#/components/responses/{status}"} for status in ("4XX", "503")}
        return {str(said.status): answer, **refusals}


def operations(routes: Iterable[web.AbstractRoute]) -> list[Operation]:
    """All routes except HEAD, which aiohttp derives from GET."""
    return [
        Operation(route.method, route.resource.canonical, route.handler)
        for route in routes
        if route.resource is not None and route.method != "HEAD"
    ]


def document(operations: Iterable[Operation], version: str) -> Schema:
    """As JSON. Operation ids are derived from the paths, so that none changes when code is moved."""
    described = list(operations)
    taken = dict.fromkeys(each.described.takes for each in described if each.described.takes is not None)
    places, schemas = models_json_schema([(model, "validation") for model in taken], ref_template=COMPONENTS)
    models: Models = {model: places[model, "validation"] for model in taken}
    paths: dict[str, Schema] = {}
    for each in described:
        paths.setdefault(each.path, {})[each.method.lower()] = each.object(models)
    return {
        "openapi": OPENAPI,
        "info": {"title": "Firsttoken", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": ERROR},
            "responses": {
                "4XX": _error("The request was refused."),
                "503": _error("The server is temporarily unavailable. Retry after the time in `retry-after`."),
            },
            "securitySchemes": {
                BEARER: {"type": "http", "scheme": "bearer", "description": "An API key (ft_…) or a JWT."}
            },
        },
    }


def _error(description: str) -> Schema:
    return {"description": description, "content": {JSON: {"schema": {"$ref": COMPONENTS.format(model="Error")}}}}


@routes.get("/openapi.json", EVERYBODY)
async def describe(request: web.Request) -> web.Response:
    """This description of the API, in OpenAPI 3.1."""
    body = await asyncio.to_thread(_encoded, tuple(operations(request.app.router.routes())))
    return json_bytes(body)


@lru_cache(APPS_MAX)
def _encoded(operations: tuple[Operation, ...]) -> bytes:
    """Takes a moment."""
    return orjson.dumps(document(operations, VERSION))
