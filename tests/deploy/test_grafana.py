"""The dashboards that are shipped ask for metrics that a worker tells, with labels that these have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import promql_parser
import pytest
from promql_parser import VectorSelector

from tests.deploy.test_prometheus_rules import told

DASHBOARDS = sorted((Path(__file__).parents[2] / "deploy" / "grafana").glob("*.json"))
VARIABLES = {"$__rate_interval": "5m", "$surface": ".*"}
PARTS = re.compile(r"_(bucket|sum|count)$")


def dashboard(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def expressions(path: Path) -> list[str]:
    return [target["expr"] for panel in dashboard(path)["panels"] for target in panel["targets"]]


def selectors(expr: str) -> list[VectorSelector]:
    """Those of the whole expression. Raises ValueError for what is no PromQL."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return list(_within(promql_parser.parse(expr)))


def _within(node: object) -> Iterator[VectorSelector]:
    if isinstance(node, VectorSelector):
        yield node
        return
    for name in ("expr", "lhs", "rhs", "vector_selector", "args", "param"):
        child = getattr(node, name, None)
        for each in child if isinstance(child, list) else [child]:
            if each is not None:
                yield from _within(each)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
async def test_every_metric_of_a_dashboard_is_one_that_a_worker_tells(path: Path, server: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with aiohttp.ClientSession(headers=headers) as client, client.get(f"{server['url']}/metrics") as response:
        assert response.status == 200
        real = await response.text()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", real, re.MULTILINE))
    lines = (real + told()).splitlines()
    asked = [each for expr in expressions(path) for each in selectors(expr)]
    assert len(asked) >= 10
    for selector in asked:
        name = selector.name or ""
        assert types.get(name) in ("counter", "gauge") or types.get(PARTS.sub("", name)) == "histogram", name
        for matcher in selector.matchers.matchers:
            assert any(line.startswith(f"{name}{{") and f'{matcher.name}="' in line for line in lines), (name, matcher)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_no_panel_covers_another_and_all_ask_the_source_that_is_chosen(path: Path) -> None:
    content = dashboard(path)
    taken: set[tuple[int, int]] = set()
    for panel in content["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
    assert content["templating"]["list"][0]["name"] == "datasource"


def test_what_is_no_expression_is_noticed() -> None:
    with pytest.raises(ValueError, match=r".+"):
        selectors("sum(rate(firsttoken_turns_total[5m])")
    assert [each.name for each in selectors("a / on (x) sum(rate(b[5m])) > 3")] == ["a", "b"]
