"""The web pages' copies of npm packages: `python -m deploy.vendor` fetches what the manifest pins.

The files are committed, so npm is needed only to update them. To update a package, change its version in the manifest
and clear its integrity. A bundle that includes other packages contains their licences too.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[1] / "worker" / "static" / "vendor"
MANIFEST = VENDOR / "manifest.json"
PACK_S = 120  # per package; the largest has 1 MB


class TamperedPackage(Exception):
    """The registry returned a package whose integrity is not the pinned one."""


def update(folder: Path = VENDOR) -> None:
    """Fetch all packages of the manifest and record their hashes in it. Raises TamperedPackage."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for package in manifest["packages"]:
        with tempfile.TemporaryDirectory() as scratch:
            archive, integrity = pack(package["name"], package["version"], Path(scratch))
            if package["integrity"] not in ("", integrity):
                raise TamperedPackage(f"{package['name']} {package['version']} has the integrity {integrity}")
            package["integrity"] = integrity
            extract(archive, package["files"], folder)
    manifest["sha256"] = digests(folder, manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def pack(name: str, version: str, folder: Path) -> tuple[Path, str]:
    """Download the archive of a package into `folder`. Returns its path and its integrity ("sha512-…")."""
    command = ["npm", "pack", f"{name}@{version}", "--json", "--silent", "--pack-destination", str(folder)]
    told = subprocess.run(command, capture_output=True, check=True, text=True, timeout=PACK_S).stdout
    reports: Any = json.loads(told)
    report = reports[0] if isinstance(reports, list) else next(iter(reports.values()))
    return folder / report["filename"], report["integrity"]


def extract(archive: Path, files: Mapping[str, str], folder: Path) -> None:
    with tarfile.open(archive) as package:
        for source, target in files.items():
            member = package.extractfile(f"package/{source}")
            assert member is not None, f"{archive.name} has no file {source}"
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(member.read())


def digests(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of every file that the manifest names."""
    targets = [target for package in manifest["packages"] for target in package["files"].values()]
    return {target: hashlib.sha256((folder / target).read_bytes()).hexdigest() for target in sorted(targets)}


if __name__ == "__main__":
    update()
