"""An adapter that was added to the weights once is the adapter that is added at every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter, dequantize

from inference.bundled import ADAPTER, ADAPTER_TEMPLATE, CHAT_MODEL
from inference.provisioning.catalogue import SMOL_CHAT
from inference.provisioning.merged_weights import merge
from tests.inference.adapters import Change, random_changes, write_adapter, write_merged
from tests.inference.variants import opened

Q8_STEPS = 0.6  # to the nearest of 255, of a scale that is itself rounded to 16 bits


@pytest.fixture(scope="module")
def changes() -> dict[str, Change]:
    return random_changes(CHAT_MODEL)


def test_every_weight_is_the_one_that_the_adapter_makes(tmp_path: Path, changes: dict[str, Change]) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", changes)
    merge(CHAT_MODEL, adapter, tmp_path / "merged.gguf", {"general.name": "Mine", "llama.context_length": 512})
    wanted = GGUFReader(write_merged(CHAT_MODEL, tmp_path / "exact.gguf", changes))
    merged = GGUFReader(tmp_path / "merged.gguf")
    assert [tensor.name for tensor in merged.tensors] == [tensor.name for tensor in wanted.tensors]
    for ours, exact in zip(merged.tensors, wanted.tensors, strict=True):
        weights = dequantize(exact.data, exact.tensor_type)
        blocks = np.abs(weights).reshape(*weights.shape[:-1], -1, 32).max(-1).repeat(32, -1)
        assert (np.abs(dequantize(ours.data, ours.tensor_type) - weights) <= Q8_STEPS * blocks / 127 + 1e-6).all()


def test_what_the_base_says_of_itself_is_kept_but_for_what_changes(tmp_path: Path, changes: dict[str, Change]) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", changes)
    merge(CHAT_MODEL, adapter, tmp_path / "merged.gguf", {"general.name": "Mine", "llama.context_length": 512})
    before, behind = opened(CHAT_MODEL), GGUFReader(tmp_path / "merged.gguf")
    said = {name: field.contents() for name, field in behind.fields.items() if not name.startswith("GGUF.")}
    kept = {name: field.contents() for name, field in before.fields.items() if not name.startswith("GGUF.")}
    assert said == {**kept, "general.name": "Mine", "llama.context_length": 512}


def test_an_adapter_of_another_model_is_refused_by_the_matrix(tmp_path: Path, changes: dict[str, Change]) -> None:
    name, (a, b) = next(iter(changes.items()))
    wider = write_adapter(tmp_path / "wider.gguf", {name: (a, np.vstack([b, b]))})
    with pytest.raises(ValueError, match=f"its change of {name} is"):
        merge(CHAT_MODEL, wider, tmp_path / "merged.gguf", {})
    deeper = write_adapter(tmp_path / "deeper.gguf", {"blk.99.attn_q.weight": (a, b)})
    with pytest.raises(ValueError, match=r"it changes blk\.99\.attn_q\.weight"):
        merge(CHAT_MODEL, deeper, tmp_path / "merged.gguf", {})


def test_a_file_that_has_lost_its_end_makes_no_weights(tmp_path: Path, changes: dict[str, Change]) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", changes)
    cut = tmp_path / "cut.gguf"
    for whole, pair in ((CHAT_MODEL, (cut, adapter)), (adapter, (CHAT_MODEL, cut))):
        cut.write_bytes(whole.read_bytes()[:-100])
        with pytest.raises(ValueError, match=r"cut\.gguf does not have all of "):
            merge(*pair, tmp_path / "merged.gguf", {})
    assert not (tmp_path / "merged.gguf").exists()


def test_a_change_of_which_there_is_one_half_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "half.gguf", "llama")
    writer.add_float32("adapter.lora.alpha", 1.0)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"one half of its change of blk\.0\.attn_q\.weight"):
        merge(CHAT_MODEL, tmp_path / "half.gguf", tmp_path / "merged.gguf", {})


def test_the_bundled_adapter_fits_its_base_and_the_repository() -> None:
    layers, width, heads, kv_heads, length = SMOL_CHAT.base.shape
    reader = GGUFReader(ADAPTER)
    found = {tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors}
    for name, outputs in {"attn_q": heads * length, "attn_k": kv_heads * length, "attn_v": kv_heads * length}.items():
        down, up = (found[f"blk.{layers - 1}.{name}.weight.lora_{part}"] for part in "ab")
        assert (down[0], up[1]) == (width, outputs) and down[1] == up[0]
    assert ADAPTER.stat().st_size <= 25_000_000 and ADAPTER_TEMPLATE.is_file()
    assert "Apache License 2.0" in SMOL_CHAT.card.read_text()
