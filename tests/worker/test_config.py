"""One field is one flag and one variable; a value that cannot be used is named with its source."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.cli.arguments import add_settings
from worker.config import Config, load, settings, unknown_variables
from worker.setting import ConfigError


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default() -> None:
    environment = {"FIRSTTOKEN_PORT": "9000", "FIRSTTOKEN_HOST": "::1"}
    config = load({"port": "9001"}, environment)
    assert (config.port, config.host, config.streams) == (9001, "::1", Config().streams)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load({}, {"FIRSTTOKEN_PORT": "", "DATABASE_URL": ""}) == Config()


def test_the_customary_name_of_the_database_is_read_and_the_prefixed_one_wins() -> None:
    assert load({}, {"DATABASE_URL": "postgresql://a"}).database_url == "postgresql://a"
    both = {"DATABASE_URL": "postgresql://a", "FIRSTTOKEN_DATABASE_URL": "postgresql://b"}
    assert load({}, both).database_url == "postgresql://b"


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("FIRSTTOKEN_STREAM", "; did you mean FIRSTTOKEN_STREAMS?"),
        ("FIRSTTOKEN_KVTYPE", "; did you mean FIRSTTOKEN_KV_TYPE?"),
        ("FIRSTTOKEN_QQQ", ""),
        ("FIRSTTOKEN_BODY_S", " any more"),
    ],
)
def test_a_variable_that_is_no_setting_has_no_effect_and_the_nearest_setting_is_named(variable: str, told: str) -> None:
    assert unknown_variables({variable: "8"}) == [f"{variable} has no effect: there is no such setting{told}"]


@pytest.mark.parametrize(
    "variable",
    [
        *("FIRSTTOKEN_STREAMS", "FIRSTTOKEN_BACKEND", "FIRSTTOKEN_WHEELS", "FIRSTTOKEN_WORKER_1", "PATH"),
        *("FIRSTTOKEN_SERVICE_HOST", "FIRSTTOKEN_ENGINE_SERVICE_PORT_HTTP", "FIRSTTOKEN_PORT_8080_TCP_ADDR"),
    ],
)
def test_a_variable_of_a_setting_or_of_other_programs_is_not_told(variable: str) -> None:
    assert unknown_variables({variable: "8"}) == []


def test_a_variable_without_a_value_sets_nothing_and_is_not_told() -> None:
    assert unknown_variables({"FIRSTTOKEN_STREAM": ""}) == []


def test_an_empty_flag_takes_a_default_away() -> None:
    assert load({"docs": ""}, {}).docs is None


def test_the_home_is_absolute() -> None:
    assert load({"home": "~/x"}, {}).home == Path.home() / "x"
    assert load({"home": "x"}, {}).home.is_absolute()


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"port": "http"}, {}, "--port must be a number, not 'http'"),
        ({"home": ""}, {}, "--home must not be empty"),
        ({"port": "70000"}, {}, "--port must be between 0 and 65535, not 70000"),
        ({}, {"FIRSTTOKEN_PORT": "-1"}, "FIRSTTOKEN_PORT must be between 0 and 65535, not -1"),
        ({"turns": "0"}, {}, "--turns must be at least 1, not 0"),
        ({"drain_s": "nan"}, {}, "--drain-s must be at least 0, not nan"),
        ({"drain_s": "-1"}, {}, "--drain-s must be at least 0, not -1"),
        ({"log_level": "loud"}, {}, "--log-level must be debug, info, warning or error, not 'loud'"),
        ({"kv_layout": "pool"}, {}, "--kv-layout must be auto, streams or unified"),
        ({"flash_attention": "yes"}, {}, "--flash-attention must be auto, off or on"),
        ({"threads": "513"}, {}, "--threads must be between 0 and 512, not 513"),
        ({"kv_type": "q5_0"}, {}, "--kv-type must be auto, f16, q8_0 or q4_0"),
        ({"kv_windows": "some"}, {}, "--kv-windows must be auto, all or window"),
        ({"kv_type": "q4_0", "flash_attention": "off"}, {}, "--kv-type q4_0 needs flash attention"),
        ({"kv_place": "auto"}, {}, "--kv-place must be gpu or host, not 'auto'"),
        ({"gpu_split": "rows"}, {}, "--gpu-split must be layer, row, none, or with shares as in layer:3,1"),
        ({"gpu_split": "layer:1,x"}, {}, "--gpu-split has shares that are no numbers"),
        ({"gpu_split": "row:0,0"}, {}, "--gpu-split takes 1 to 16 shares, not negative and not all zero"),
        ({"gpu_split": "none:1"}, {}, "--gpu-split takes no shares with none"),
        ({"load_mode": "lock"}, {}, "--load-mode must be auto, mmap, mlock or read"),
        ({"kv_type": "q8_0", "flash_attention": "off"}, {}, "--kv-type q8_0 needs flash attention"),
        ({"targets": "chat=fast"}, {}, "--targets must look like chat=500/100, not 'chat=fast'"),
        ({"cors_origins": "example.com"}, {}, "--cors-origins must be \\* or origins such as"),
        ({"jwt_secret": "short"}, {}, "--jwt-secret must have 32 characters"),
        ({"mcp_origins": "https://tools.test/mcp"}, {}, "--mcp-origins must be origins such as"),
        ({"mcp_private_origins": "*"}, {}, "--mcp-private-origins is not a web address"),
        ({"jwt_jwks_url": "file:///etc/passwd"}, {}, "--jwt-jwks-url must be an http"),
        ({"otlp_headers": "x-team"}, {}, "--otlp-headers must be name=value"),
        ({"oidc_issuer": "https://login.test"}, {}, "--oidc-issuer needs --oidc-client-id"),
        ({}, {"FIRSTTOKEN_OIDC_CLIENT_ID": "x"}, "--oidc-client-id needs --oidc-issuer"),
        ({"database_replica_url": "postgresql://b"}, {}, "--database-replica-url needs --database-url"),
        ({"oidc_operator": "ops"}, {}, "--oidc-operator must be claim=value"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(flags: dict[str, str], environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(flags, environment)


def test_every_setting_has_a_flag_a_variable_and_a_text() -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser, {setting.name for setting in settings()})
    text = " ".join(parser.format_help().split())
    for setting in settings():
        assert setting.flag in text
        assert setting.variable in text
        assert setting.about.help


def test_every_setting_can_be_given_by_its_variable() -> None:
    samples = {int: "1", float: "1", str: "info", Path: "/x"}
    special = {
        "hub": "https://hub.test",
        "kv_layout": "unified",
        "kv_type": "f16",
        "kv_windows": "window",
        "kv_place": "host",
        "gpu_split": "row:1,1",
        "load_mode": "mlock",
        "flash_attention": "off",
        "jwt_secret": "s" * 32,
        "jwt_jwks_url": "https://issuer.test/keys",
        "body_bytes": "4096",
        "targets": "chat=200/50",
        "late": "wait",
        "objective": "0.9",
        "cors_origins": "https://app.test",
        "mcp_origins": "https://tools.test",
        "mcp_private_origins": "http://localhost:9000",
        "alias": "gpt-4o=demo-chat",
        "engines": "http://engine.test:9000",
        "listen": "127.0.0.1:9000",
        "otlp_endpoint": "http://collector.test:4318",
        "otlp_headers": "x-team=edge",
        "oidc_issuer": "https://login.test",
        "oidc_operator": "groups=ops",
        "oidc_url": "https://chat.test",
    }
    environment = {s.variable: special.get(s.name, samples[s.kind]) for s in settings()}
    config = load({}, environment)
    for setting in settings():
        assert str(getattr(config, setting.name)) in (
            environment[setting.variable],
            f"{environment[setting.variable]}.0",
        )


def test_products_of_vectors_start_no_threads_beside_those_of_the_engine() -> None:
    multiply = (
        "import os; from worker.config import prepare_process; prepare_process(); import numpy; "
        "numpy.ones((512, 512)) @ numpy.ones((512, 512)); print(len(os.listdir('/proc/self/task')))"
    )
    unset = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", multiply], env=unset, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
