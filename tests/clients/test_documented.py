"""docs/clients.md: who is said to run in the tests does, and who runs in them is said to."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from deploy import clients
from deploy.setup import ROOT

FOLDER = Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs" / "clients.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| client")
]
RUNNING = [row for row in ROWS if row[3] != "shapes"]
OF_THE_ENVIRONMENT = ("openai", "anthropic", "langchain-openai")  # packages that tests import themselves


def packages(row: list[str]) -> set[str]:
    """In code, beside the name of the client and in what was tested with it."""
    return set(re.findall(r"`([^`]+)`", row[0] + row[1]))


def installed() -> set[str]:
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    names = {re.split(r"[\[<>=]", wanted)[0] for wanted in dev}
    assert names.issuperset(OF_THE_ENVIRONMENT)
    wanted = "".join((clients.PYTHON_FOLDER / f"{client}.in").read_text() for client in clients.PYTHON_CLIENTS)
    pinned = {line.split("==")[0] for line in wanted.splitlines() if "==" in line} - {"mcp"}  # which litellm wants
    npm = (json.loads((folder / "package.json").read_text()) for folder in (clients.FOLDER, clients.PROGRAMS))
    return {*OF_THE_ENVIRONMENT, *pinned, *(name for each in npm for name in each["dependencies"])}


def test_every_row_has_two_lines_to_connect() -> None:
    assert [row[0] for row in ROWS if len(row) != 4 or "<br>" not in row[2]] == []


def test_every_client_that_is_installed_has_a_row() -> None:
    assert installed() - {name for row in RUNNING for name in packages(row)} == set()


def test_every_row_that_names_a_file_is_held_by_it() -> None:
    for row in RUNNING:
        package = re.findall(r"`([^`]+)`", row[0])[0]
        assert package in installed(), row[0]
        for name in re.findall(r"`(test_\w+\.py)`", row[3]):
            scripts = {"test_node.py": clients.FOLDER, "test_python_clients.py": clients.PYTHON_FOLDER}
            sources = (
                [*scripts[name].glob("*.mjs"), *scripts[name].glob("*.py")] if name in scripts else [FOLDER / name]
            )
            module = {"openai-agents": "agents"}.get(package, package).replace("-", "[-_]")
            imports = re.compile(rf"""((from|import) "?|MODULES / "){module}\b""")
            assert any(imports.search(source.read_text()) for source in sources), (row[0], name)
