"""Which GPUs a machine has, before anything is built for them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from inference.provisioning import gpus as module
from inference.provisioning.gpus import gpus


def test_gpus_are_those_that_the_kernel_drives_and_programs_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder in (("NVIDIA_FOLDER", "gpus"), ("CARDS", "drm"), ("DOORS", "dri")):
        monkeypatch.setattr(module, name, tmp_path / folder)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert gpus() == []
    for card, vendor in (("renderD128", "0x1002"), ("renderD129", "0x1002"), ("renderD130", "0x1af4")):
        (tmp_path / "drm" / card / "device").mkdir(parents=True)
        (tmp_path / "drm" / card / "device" / "vendor").write_text(f"{vendor}\n")
    assert gpus() == []  # a container that was given none sees the cards all the same
    (tmp_path / "dri").mkdir()
    for card in ("renderD128", "renderD129", "renderD130"):
        (tmp_path / "dri" / card).touch()
    assert gpus() == ["AMD"]
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    assert gpus() == ["NVIDIA", "AMD"]


def test_a_mac_with_apple_silicon_has_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("NVIDIA_FOLDER", "CARDS", "DOORS"):
        monkeypatch.setattr(module, name, tmp_path / "none")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert gpus() == ["Apple"]
