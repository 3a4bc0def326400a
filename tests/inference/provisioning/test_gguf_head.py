"""The head of a GGUF file is read and written without unpacking it."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest
from gguf import GGUFWriter

from inference.bundled import ADAPTER, CHAT_MODEL, EMBEDDER
from inference.provisioning.gguf_head import Head, number, numbers, read_only, stated
from tests.inference.variants import opened


@pytest.mark.parametrize("path", [CHAT_MODEL, EMBEDDER, ADAPTER], ids=lambda path: path.stem)
def test_what_was_read_is_written_byte_by_byte(path: Path) -> None:
    file = read_only(path)
    head, start = Head.read(file)
    assert head.packed() == file[:start]
    known = opened(path)
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


def test_a_head_that_is_damaged_or_of_another_kind_is_refused_in_one_line() -> None:
    whole = read_only(CHAT_MODEL)
    _, start = Head.read(whole)
    head = whole[:start].tobytes()
    key = pack("<Q", 1) + b"k"
    deep = pack("<I", 9) + pack("<IQ", 9, 1) * 5000
    wrong = [
        b"",
        b"GGML" + head[4:],
        head[:4] + pack("<I", 1) + head[8:],
        head[:4] + pack(">I", 3) + head[8:],
        head[: start // 2],
        pack("<4sIQQ", b"GGUF", 3, 2**63, 0),
        pack("<4sIQQ", b"GGUF", 3, 0, 2**63),
        pack("<4sIQQ", b"GGUF", 3, 0, 1) + pack("<Q", 2**64 - 1),
        pack("<4sIQQ", b"GGUF", 3, 0, 1) + key + pack("<I", 99),
        pack("<4sIQQ", b"GGUF", 3, 0, 1) + key + deep,
        pack("<4sIQQ", b"GGUF", 3, 1, 0) + key + pack("<I", 2**32 - 1),
        Head({"general.alignment": stated(1)}, []).packed().replace(stated(1), stated(0)),
    ]
    for file in wrong:
        with pytest.raises(ValueError, match=r"^(it is not a GGUF file|the head of the file is damaged).*$"):
            Head.read(memoryview(file))


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
