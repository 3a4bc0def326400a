"""The disk tier: what was written is found again, and whatever is wrong with a file costs nothing but that file."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.generated_tokens import GeneratedTokens
from inference.kvcache.disk import BLOCK, DiskIndex, DiskTier, IndexedState, chain
from inference.kvcache.disk.file import KV, KvFile
from inference.kvcache.disk.file import TURNS as TURNS_FILE
from inference.kvcache.disk.tier import REST_S
from inference.kvcache.host_cache import Entry, Kept
from inference.prompt import CacheScope, ChatMessage

ANSWER, ANSWER_IDS = ChatMessage("assistant", "hello"), tuple(b"hello")
FINGERPRINT, OTHER_MODEL = b"m" * 32, b"o" * 32
TOKENS = tuple(range(2 * BLOCK))
PLENTY = 10**9
TENANT = CacheScope("tenant")


def entry(tokens: tuple[int, ...] = TOKENS, scope: CacheScope = TENANT, size: int = 1000) -> Entry:
    return Entry(tokens, scope, np.arange(size).astype(np.uint8))


def no_turns() -> GeneratedTokens:
    return GeneratedTokens([bytes([n]) for n in range(256)], FINGERPRINT)


@contextmanager
def disk(
    folder: Path,
    fingerprint: bytes = FINGERPRINT,
    bytes_max: int = PLENTY,
    spare_bytes: int = 0,
    turns: GeneratedTokens | None = None,
) -> Iterator[DiskTier]:
    tier = DiskTier(folder, fingerprint, bytes_max, turns, spare_bytes=spare_bytes)
    tier.start()
    assert tier.ready.wait(60)
    yield tier
    tier.close()


def fill(folder: Path, *entries: Entry) -> None:
    with disk(folder) as tier:
        for each in entries:
            tier.write(each)


def fetch(tier: DiskTier, tokens: tuple[int, ...] = TOKENS, scope: CacheScope = TENANT) -> Entry | None:
    found = tier.match(tokens, scope)
    return tier.read(found).result(10) if found else None


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{KV}"))


def test_a_conversation_outlives_the_worker(tmp_path: Path) -> None:
    fill(tmp_path, entry())
    with disk(tmp_path) as tier:
        found = tier.match([*TOKENS, 7, 8], TENANT)
        assert found is not None and found.tokens == len(TOKENS)
        back = fetch(tier)
    assert back is not None
    assert (back.tokens, back.scope, back.state.tolist()) == (TOKENS, TENANT, entry().state.tolist())


def test_checkpoints_of_a_conversation_lie_beside_it_and_are_read_with_it(tmp_path: Path) -> None:
    logits = np.arange(5, dtype=np.float32)
    checkpoints = tuple(Kept(at, np.full(size, at, np.uint8), logits) for at, size in ((70, 10), (100, 31)))
    checkpoints += (Kept(100, np.full(3, 9, np.uint8)),)
    fill(tmp_path, replace(entry(), checkpoints=checkpoints))
    with disk(tmp_path) as tier:
        assert tier.size == files(tmp_path)[0].stat().st_size > entry().size + 40
        back = fetch(tier)
    assert back is not None and back.state.tolist() == entry().state.tolist()
    assert [(kept.tokens, kept.state.tolist()) for kept in back.checkpoints] == [
        (70, [70] * 10),
        (100, [100] * 31),
        (100, [9] * 3),
    ]
    assert [kept.logits is not None and kept.logits.tolist() for kept in back.checkpoints] == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4],
        False,
    ]


def test_a_file_tells_nothing_by_its_name_and_is_its_owners_alone(tmp_path: Path) -> None:
    fill(tmp_path, entry(scope=CacheScope("acme")), entry(scope=CacheScope("other")))
    assert len(files(tmp_path)) == 2  # the same text of two tenants is not one file
    for path in files(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"acme" not in path.read_bytes() and "acme" not in path.name
    assert len({path.read_bytes() for path in files(tmp_path)}) == 2


def test_a_tenants_text_is_not_found_by_another(tmp_path: Path) -> None:
    fill(tmp_path, entry())
    with disk(tmp_path) as tier:
        assert tier.match(TOKENS, CacheScope("another")) is None


def test_exact_prompts_find_only_their_like(tmp_path: Path) -> None:
    exact = CacheScope("tenant", exact=True)
    fill(tmp_path, entry(), entry(scope=exact))
    with disk(tmp_path) as tier:
        assert (tier.files, fetch(tier) is not None, fetch(tier, scope=exact) is not None) == (2, True, True)
        assert tier.match(TOKENS, CacheScope("tenant\0exact")) is None


def test_another_model_finds_nothing_and_leaves_the_files(tmp_path: Path) -> None:
    fill(tmp_path, entry())
    with disk(tmp_path, OTHER_MODEL) as tier:
        assert (tier.match(TOKENS, TENANT), tier.files, tier.totals["damaged"]) == (None, 1, 0)
    with disk(tmp_path) as tier:
        assert fetch(tier) is not None


def cut(content: bytes) -> bytes:
    return content[:-1]


def grown(content: bytes) -> bytes:
    return content + b"x"


def beginning(content: bytes) -> bytes:
    return content[:20]


def nothing(content: bytes) -> bytes:
    return b""


def of_another_kind(content: bytes) -> bytes:
    return b"\x7fELF" + content[4:]


@pytest.mark.parametrize("damage", [cut, grown, beginning, nothing, of_another_kind])
def test_a_torn_file_is_removed_at_start(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    fill(tmp_path, entry())
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with disk(tmp_path) as tier:
        assert (tier.match(TOKENS, TENANT), tier.totals["damaged"], files(tmp_path)) == (None, 1, [])


@pytest.mark.parametrize("at", [10, 60, 70, 100, 200, -1])
def test_a_flipped_byte_is_found_when_the_file_is_read(tmp_path: Path, at: int) -> None:
    fill(tmp_path, entry())
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with disk(tmp_path) as tier:
        assert fetch(tier) is None
        gone = not files(tmp_path)
        assert gone or tier.match(TOKENS, TENANT) is None  # other tokens, tenant or model: it cannot be found


def test_a_file_that_somebody_removed_is_no_failure(tmp_path: Path) -> None:
    fill(tmp_path, entry())
    with disk(tmp_path) as tier:
        files(tmp_path)[0].unlink()
        assert (fetch(tier), tier.files) == (None, 0)


def test_a_state_for_which_there_is_no_memory_is_computed_and_its_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, entry())

    def short_of_memory(_path: Path) -> KvFile:
        raise MemoryError

    with disk(tmp_path) as tier:
        with monkeypatch.context() as patch:
            patch.setattr(KvFile, "read", short_of_memory)
            assert fetch(tier) is None
        assert fetch(tier) is not None


def test_what_was_half_written_is_swept_up_and_strangers_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "half.tmp").write_bytes(b"x")
    for earlier in ("earlier.root", "earlier.kv"):
        (tmp_path / earlier).write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"x")
    with disk(tmp_path) as tier:
        assert tier.totals["damaged"] == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "notes.txt"]


def test_the_bytes_are_bounded_and_the_least_recently_used_go_first(tmp_path: Path) -> None:
    first, second, third = (entry((n, *TOKENS)) for n in (1, 2, 3))
    fill(tmp_path, first, second)
    size = files(tmp_path)[0].stat().st_size
    with disk(tmp_path, bytes_max=2 * size) as tier:
        assert fetch(tier, first.tokens) is not None  # used now
        tier.write(third)
        tier.close()
        held = [tier.match(each.tokens, TENANT) is not None for each in (first, second, third)]
        assert (held, tier.size, len(files(tmp_path))) == ([True, False, True], 2 * size, 2)


def test_a_smaller_bound_at_the_next_start_is_kept_too(tmp_path: Path) -> None:
    fill(tmp_path, *(entry((n, *TOKENS)) for n in range(5)))
    with disk(tmp_path, bytes_max=2 * files(tmp_path)[0].stat().st_size):
        assert len(files(tmp_path)) == 2


def written(tier: DiskTier) -> int:
    """How many states, once everything that is queued is written."""
    tier._writer.submit(lambda: None).result(10)
    return tier.totals["written"]


def test_a_disk_that_fails_is_left_alone_for_a_while_and_then_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kv"
    with disk(folder) as tier:
        tier.write(entry())
        tier._writer.submit(shutil.rmtree, folder).result(10)
        tier.write(entry((9, *TOKENS)))
        assert written(tier) == 1
        folder.mkdir()
        tier.write(entry((8, *TOKENS)))
        assert (written(tier), fetch(tier)) == (1, None)
        later = time.monotonic() + REST_S
        monkeypatch.setattr("inference.kvcache.disk.tier.monotonic", lambda: later)
        tier.write(entry((7, *TOKENS)))
        assert written(tier) == 2
        assert fetch(tier, (7, *TOKENS)) is not None
    assert sum("not kept on disk for now" in record.getMessage() for record in caplog.records) == 1


def test_a_disk_that_is_nearly_full_is_left_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with disk(tmp_path, spare_bytes=2**60) as tier:
        tier.write(entry())
    assert "nearly full" in caplog.text
    assert files(tmp_path) == []


def test_a_disk_that_others_fill_gets_the_space_of_the_oldest_files_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (entry((n, *TOKENS)) for n in (1, 2, 3))
    fill(tmp_path, first, second)
    size = files(tmp_path)[0].stat().st_size

    def usage(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=2.5 * size - sum(file.stat().st_size for file in files(folder)))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with disk(tmp_path, spare_bytes=0) as tier:
        assert fetch(tier, first.tokens) is not None  # used now
        tier.write(third)
        assert written(tier) == 1
        held = [tier.match(each.tokens, TENANT) is not None for each in (first, second, third)]
    assert held == [True, False, True]


def test_a_folder_that_cannot_be_used_is_said_and_harmless(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    with disk(tmp_path / "file" / "kv") as tier:
        tier.write(entry())
        assert tier.match(TOKENS, TENANT) is None
    assert "not kept on disk" in caplog.text


def test_two_workers_do_not_share_a_folder_and_one_takes_it_when_the_other_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.kvcache.disk.tier.TAKE_S", 0.01)
    with ExitStack() as first:
        one = first.enter_context(disk(tmp_path))
        with disk(tmp_path) as two:
            assert (one.writes, two.writes) == (True, False)
            one.write(entry())
            first.close()
            while two.match(TOKENS, TENANT) is None:
                time.sleep(0.01)
            assert two.writes


def fill_with_turns(folder: Path) -> None:
    turns = no_turns()
    turns.put(ANSWER, ANSWER_IDS)
    with disk(folder, turns=turns) as tier:
        tier.write(entry())


def test_generated_turns_outlive_the_worker_beside_the_states(tmp_path: Path) -> None:
    fill_with_turns(tmp_path)
    with disk(tmp_path, turns=(turns := no_turns())) as tier:
        assert (turns.get(ANSWER), tier.files) == (ANSWER_IDS, 1)
    content = (tmp_path / TURNS_FILE).read_bytes()
    assert ANSWER.content.encode() not in content
    assert stat.S_IMODE((tmp_path / TURNS_FILE).stat().st_mode) == 0o600


def test_turns_are_there_before_the_states_that_need_them(tmp_path: Path) -> None:
    """As after a crash: the file is read while the worker that wrote it still runs."""
    turns = no_turns()
    turns.put(ANSWER, ANSWER_IDS)
    with disk(tmp_path, turns=turns) as tier:
        tier.write(entry())
        tier._writer.submit(lambda: None).result(10)
        written = (tmp_path / TURNS_FILE).read_bytes()
        turns.put(ChatMessage("assistant", "more"), tuple(b"more"))
    assert written
    assert written != (tmp_path / TURNS_FILE).read_bytes()  # what came after the last state, at the close


@pytest.mark.parametrize("damage", [cut, grown, beginning, nothing, of_another_kind])
def test_a_damaged_file_of_turns_is_removed_and_costs_only_the_turns(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    fill_with_turns(tmp_path)
    path = tmp_path / TURNS_FILE
    path.write_bytes(damage(path.read_bytes()))
    with disk(tmp_path, turns=(turns := no_turns())) as tier:
        assert (turns.get(ANSWER), len(turns), tier.totals["damaged"]) == (None, 0, 1)
        assert not path.exists()
        assert fetch(tier) is not None


def block(text: str) -> tuple[bytes, ...]:
    return tuple(text[:end].encode() for end in range(1, len(text) + 1))


def test_the_longer_state_of_a_conversation_replaces_the_shorter_one_and_what_they_share_is_held() -> None:
    index = DiskIndex(100)
    index.add(IndexedState("common", 1, block("ab")))
    index.add(IndexedState("short", 1, block("abc")))
    index.add(IndexedState("branch", 1, block("abx")))
    assert index.add(IndexedState("long", 1, block("abcd"))) == ["short"]
    assert (len(index), index.size) == (2, 2)
    assert index.holds(block("ab")) and not index.holds(block("b"))


texts = st.text("ab", min_size=1, max_size=5)


@given(st.lists(st.tuples(texts, st.integers(1, 9)), max_size=20), texts)
def test_the_shelf_adds_up_and_a_match_is_the_longest(puts: list[tuple[str, int]], wanted: str) -> None:
    index, kept = DiskIndex(20), dict[str, IndexedState]()
    for number, (text, size) in enumerate(puts):
        file = kept[str(number)] = IndexedState(str(number), size, block(text))
        for name in index.add(file):
            del kept[name]
    assert index.size == sum(file.size for file in kept.values()) <= 20
    shared = [len(set(file.blocks) & set(block(wanted))) for file in kept.values()]
    found, tokens = index.match(block(wanted))
    assert tokens == BLOCK * max(shared, default=0)
    assert (found is None) == (tokens == 0)


def test_a_chain_tells_apart_what_differs_anywhere_before() -> None:
    changed = (5, *TOKENS[1:])
    assert chain(TOKENS, b"a")[:1] == chain(TOKENS[: BLOCK + 3], b"a")
    assert not set(chain(TOKENS, b"a")) & set(chain(changed, b"a"))
    assert not set(chain(TOKENS, b"a")) & set(chain(TOKENS, b"b"))
