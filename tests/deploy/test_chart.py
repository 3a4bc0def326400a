"""deploy/helm/firsttoken, linted and rendered by Helm itself and held against the schemas of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

from tests.serving import ROOT
from worker.cli.parser import parser

CHART = ROOT / "deploy/helm/firsttoken"
VERSIONS = ("1.29", "1.34")
OF_OTHERS = {"ScaledObject", "PodMonitor"}  # kinds that Kubernetes has no schema of
EVERYTHING: dict[str, Any] = {
    "model": "qwen3-4b",
    "database": {"pooled": True},
    "workers": {"autoscaling": {"enabled": True}, "env": {"FIRSTTOKEN_TURNS": "128"}, "args": ["--late", "refuse"]},
    "engines": {"gpus": 1, "autoscaling": {"enabled": True, "maxReplicas": 3}, "storageClass": "fast"},
    "ingress": {"enabled": True, "host": "chat.example", "className": "nginx", "annotations": {"a": "b"}},
    "monitoring": {"enabled": True, "workersKeySecret": "metrics"},
    "image": {"pullSecrets": [{"name": "registry"}]},
}


def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    with Chart.load(CHART) as chart:
        files = chart.render(dict(values), name="demo", namespace="prod")
    return [found for text in files.values() for found in yaml.safe_load_all(text) if found]


def one(kind: str, name: str, values: Mapping[str, Any] = EVERYTHING) -> dict[str, Any]:
    (found,) = (each for each in rendered(values) if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it comes", "with everything"])
def test_helm_has_nothing_to_complain_about(values: dict[str, Any]) -> None:
    report = lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it comes", "with everything"])
def test_what_it_makes_follows_the_schemas_of_kubernetes(values: dict[str, Any], version: str) -> None:
    found = rendered(values)
    for each in found:
        if each["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(each, version, strict=True)
    kinds = {each["kind"] for each in found}
    assert {"Deployment", "StatefulSet", "Job", "PodDisruptionBudget", "NetworkPolicy", "Service"} <= kinds
    assert bool(values) == ({"HorizontalPodAutoscaler", "Ingress", *OF_OTHERS} <= kinds)
    broken = one("Deployment", "demo-firsttoken-worker")
    broken["spec"]["template"]["spec"]["containers"][0]["args"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_values_that_mean_nothing_are_refused() -> None:
    for values in ({"engines": {"replicas": 0}}, {"drainSeconds": "long"}, {"image": {"pullPolicy": "Sometimes"}}):
        with pytest.raises(HelmError):
            rendered(values)
    with pytest.raises(HelmError, match=r"ingress\.host"):
        rendered({"ingress": {"enabled": True}})


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it comes", "with everything"])
def test_the_arguments_of_all_containers_are_ones_that_the_program_knows(values: dict[str, Any]) -> None:
    seen = set()
    for each in rendered(values):
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            (container,) = each["spec"]["template"]["spec"]["containers"]
            arguments = parser().parse_args(container["args"])
            seen.add(container["args"][0])
            assert getattr(arguments, "engines", None) or container["name"] != "worker"
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert each["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    assert seen == {"serve", "engine", "migrate"}


def test_workers_know_every_engine_that_there_may_be_by_the_name_that_it_has() -> None:
    (container,) = one("Deployment", "demo-firsttoken-worker")["spec"]["template"]["spec"]["containers"]
    engines = container["args"][container["args"].index("--engines") + 1].split(",")
    service = one("StatefulSet", "demo-firsttoken-engine")["spec"]["serviceName"]
    assert one("Service", service)["spec"]["clusterIP"] == "None"
    assert engines == [f"http://{service}-{number}.{service}:9000" for number in range(3)]


def test_pods_that_stop_get_longer_than_their_answers() -> None:
    for kind, name in (("Deployment", "demo-firsttoken-worker"), ("StatefulSet", "demo-firsttoken-engine")):
        pod = one(kind, name, {"drainSeconds": 300})["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] >= 315
        assert "300" in pod["containers"][0]["args"]


def test_a_release_whose_name_has_the_chart_in_it_is_not_named_twice() -> None:
    with Chart.load(CHART) as chart:
        text = "".join(chart.render({}, name="firsttoken", namespace="prod").values())
    assert "name: firsttoken-worker\n" in text and "firsttoken-firsttoken" not in text
