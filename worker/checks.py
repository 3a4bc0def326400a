"""Checks of a request that need the running worker: whether the model or the object that it names exists."""

from __future__ import annotations

from aiohttp import web

from worker.errors import ApiError
from worker.runs.run_services import RunServices
from worker.wire.options import RESULTS
from worker.wire.page import ID


def check_model(name: str | None, services: RunServices) -> str:
    """The name of what answers: the loaded model, which is also the default, or an agent of this worker.

    Raises ApiError 404 for anything else.
    """
    served = [services.model.name, *services.roster.models]
    if name is not None and name not in served:
        message = f"The model '{name}' is not available on this worker. Available: {', '.join(served)}."
        raise ApiError(404, message, type="not_found_error", param="model", code="model_not_found")
    return name or services.model.name


def path_id(request: web.Request, kind: str, name: str = "id") -> str:
    """An id of the address. Text that cannot be an id never reaches a query. Raises ApiError 404."""
    id = request.match_info[name]
    if not ID.fullmatch(id):
        raise ApiError(404, f"There is no {kind} with this id.", type="not_found_error", code="not_found")
    return id


def includes_results(request: web.Request) -> bool:
    """Whether the query string requests the results of searches; clients write `include` and `include[]`."""
    return RESULTS in (*request.query.getall("include", ()), *request.query.getall("include[]", ()))
