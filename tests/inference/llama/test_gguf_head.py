"""What the functions of models do not tell of a file is found in its head."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFWriter

from inference.bundled import CHAT_MODEL
from inference.errors import ModelNotLoaded
from inference.llama.gguf_head import names_tensor, numbers


def test_an_array_of_numbers_is_found_by_its_key(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "named.gguf", "llama")
    writer.add_array("before", ["some", "words"])
    writer.add_array("lengths", [3, 5, 8])
    writer.add_array("flags", [True, False])
    writer.add_array("shares", [0.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    keys = ("lengths", "flags", "none", "before", "shares", "general.architecture")
    assert [numbers(tmp_path / "named.gguf", key) for key in keys] == [[3, 5, 8], [1, 0], [], [], [], []]


def test_a_tensor_is_found_by_its_whole_name() -> None:
    assert [names_tensor(CHAT_MODEL, name) for name in ("token_embd.weight", "token_embd")] == [True, False]


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelNotLoaded, match=r"cannot be read any more"):
        numbers(tmp_path / "gone.gguf", "lengths")
