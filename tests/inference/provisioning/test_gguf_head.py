"""The head of a GGUF file is read and written without unpacking it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter

from inference.bundled import ADAPTER, CHAT_MODEL, EMBEDDER
from inference.provisioning.gguf_head import Head, number, numbers, read_only, stated


@pytest.mark.parametrize("path", [CHAT_MODEL, EMBEDDER, ADAPTER], ids=lambda path: path.stem)
def test_what_was_read_is_written_byte_by_byte(path: Path) -> None:
    file = read_only(path)
    head, start = Head.read(file)
    assert head.packed() == file[:start]
    known = GGUFReader(path)
    assert start == known.data_offset
    assert [(tensor.name, tensor.kind, start + tensor.offset) for tensor in head.tensors] == [
        (tensor.name, int(tensor.tensor_type), int(tensor.data_offset)) for tensor in known.tensors
    ]


def test_a_file_may_align_its_tensors_otherwise(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "wide.gguf", "llama")
    writer.add_custom_alignment(128)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    head, start = Head.read(read_only(tmp_path / "wide.gguf"))
    assert start % 128 == 0 and len(head.packed()) == start


def test_one_number_and_an_array_of_them_are_found_by_their_keys(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "named.gguf", "llama")
    writer.add_array("before", ["some", "words"])
    writer.add_array("lengths", [3, 5, 8])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert numbers(tmp_path / "named.gguf", "lengths") == (3, 5, 8)
    assert numbers(tmp_path / "named.gguf", "none") == numbers(tmp_path / "named.gguf", "general.architecture") == ()
    assert (number(stated(7)), number(stated(0.5))) == (7, 0.5)
