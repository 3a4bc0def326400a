"""What the pages bring along of others is exactly what was pinned, with its licences."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from deploy import vendor


def test_every_file_is_the_one_that_was_pinned() -> None:
    manifest = json.loads(vendor.MANIFEST.read_text())
    assert vendor.digests(vendor.VENDOR, manifest) == manifest["sha256"]
    there = {path.relative_to(vendor.VENDOR).as_posix() for path in vendor.VENDOR.rglob("*") if path.is_file()}
    assert there == {"manifest.json", *manifest["sha256"]}


def test_every_package_comes_with_its_licence() -> None:
    for package in json.loads(vendor.MANIFEST.read_text())["packages"]:
        assert any(target.startswith("licences/") for target in package["files"].values()), package["name"]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a manifest, and a registry that has its one package."""

    def pack(name: str, version: str, folder: Path) -> tuple[Path, str]:
        archive = folder / "a.tgz"
        with tarfile.open(archive, "w:gz") as package:
            entry = tarfile.TarInfo("package/dist/a.mjs")
            entry.size = 3
            package.addfile(entry, io.BytesIO(b"1;\n"))
        return archive, "sha512-real"

    monkeypatch.setattr(vendor, "pack", pack)
    return tmp_path


def write_manifest(folder: Path, integrity: str) -> None:
    package = {"name": "a", "version": "1.0.0", "integrity": integrity, "files": {"dist/a.mjs": "a.js"}}
    (folder / "manifest.json").write_text(json.dumps({"packages": [package], "sha256": {}}))


def test_an_update_takes_the_named_files_and_writes_down_what_came(registry: Path) -> None:
    write_manifest(registry, integrity="")
    vendor.update(registry)
    manifest = json.loads((registry / "manifest.json").read_text())
    assert (registry / "a.js").read_bytes() == b"1;\n"
    assert manifest["packages"][0]["integrity"] == "sha512-real"
    assert manifest["sha256"] == {"a.js": hashlib.sha256(b"1;\n").hexdigest()}


def test_a_package_that_is_not_the_pinned_one_is_refused(registry: Path) -> None:
    write_manifest(registry, integrity="sha512-other")
    with pytest.raises(vendor.TamperedPackage):
        vendor.update(registry)
    assert not (registry / "a.js").exists()
