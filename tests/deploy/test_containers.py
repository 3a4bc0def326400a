"""Containerfile and deploy/compose.yaml, looked at by what others wrote for that; no builder is at hand here."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from tests.serving import ROOT, clean_environment
from worker.cli.parser import parser
from worker.config import load

COMPOSE = ROOT / "deploy/compose.yaml"
HADOLINT = Path(sys.executable).parent / "hadolint"
OURS = ("migrate", "engine-1", "engine-2", "worker-1", "worker-2")


@pytest.fixture(scope="module")
def services() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def lint(text: str) -> str:
    return subprocess.run([HADOLINT, "-"], input=text, capture_output=True, text=True).stdout


def test_hadolint_finds_nothing_in_the_images(services: Mapping[str, Any]) -> None:
    assert lint((ROOT / "Containerfile").read_text()) == ""
    assert lint(services["pgbouncer"]["build"]["dockerfile_inline"]) == ""
    assert "DL3002" in lint("FROM debian:bookworm-slim\nUSER root\n")


def test_the_image_has_every_package_and_runs_as_nobody_in_particular() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    copied = {line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {package.rstrip("*") for package in packages} <= copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} <= set(ignored) and all((ROOT / name).exists() for name in copied)
    assert lines.count("USER 10001:10001") == 1


def test_the_file_follows_the_specification_of_compose() -> None:
    whole = yaml.safe_load(COMPOSE.read_text())
    spec = PyCompose.from_json(json.dumps(whole)).to_spec()
    assert spec.services is not None and set(spec.services) == set(whole["services"])
    with pytest.raises(ValueError):
        PyCompose.from_json(json.dumps({"services": {"a": {"image": "a", "depends_on": 5}}}))


def test_what_the_services_name_is_there(services: Mapping[str, Any]) -> None:
    whole = yaml.safe_load(COMPOSE.read_text())
    for kind in ("configs", "secrets"):
        used = {
            each if isinstance(each, str) else each["source"] for s in services.values() for each in s.get(kind, ())
        }
        assert used == set(whole[kind])
    assert all((COMPOSE.parent / each["file"]).is_file() for each in whole["configs"].values())
    made = (ROOT / "deploy/compose/secrets.sh").read_text()
    assert all(Path(each["file"]).name in made for each in whole["secrets"].values())


def test_no_service_may_gain_rights_or_write_but_to_its_volumes(services: Mapping[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name


@pytest.mark.parametrize("name", OURS)
def test_our_commands_are_ones_that_the_program_knows(services: Mapping[str, Any], name: str) -> None:
    arguments = vars(parser().parse_args(services[name]["command"]))
    flags = {flag: value for flag, value in arguments.items() if isinstance(value, str) and flag != "run"}
    environment = {**services[name].get("environment", {}), "DATABASE_URL": "postgresql://postgres:5432/firsttoken"}
    assert load(flags, environment)


@pytest.mark.parametrize(
    ("command", "direct"),
    [(["migrate"], None), (["serve", "--workers", "1"], "postgresql://postgres:one@postgres:5432/firsttoken")],
)
def test_secrets_become_the_urls_of_the_database(tmp_path: Path, command: list[str], direct: str | None) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name, text in (("owner.password", "one\n"), ("app.password", "two\n"), ("secret", "three\n")):
        (secrets / name).write_text(text)
    program = tmp_path / "firsttoken"
    program.write_text('#!/bin/sh\necho "$DATABASE_URL|$FIRSTTOKEN_DATABASE_DIRECT_URL|$FIRSTTOKEN_SECRET|$*"\n')
    program.chmod(0o755)
    script = (ROOT / "deploy/compose/with-secrets.sh").read_text().replace("/run/secrets", str(secrets))
    environment = clean_environment(PATH=f"{tmp_path}:/usr/bin:/bin")
    done = subprocess.run(["sh", "-s", *command], input=script, capture_output=True, text=True, env=environment)
    url = "postgresql://firsttoken_app:two@pgbouncer:6432/firsttoken" if direct else None
    told = [url or "postgresql://postgres:one@postgres:5432/firsttoken", direct or "", "three" if direct else ""]
    assert done.stdout.strip() == "|".join([*told, " ".join(command)]), done.stderr


def test_prometheus_scrapes_the_services_that_there_are(services: Mapping[str, Any]) -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {target.split(":")[0] for job in scraped for each in job["static_configs"] for target in each["targets"]}
    assert targets == {name for name in services if name.startswith(("worker-", "engine-"))}
