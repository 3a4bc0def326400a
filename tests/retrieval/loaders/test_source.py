from __future__ import annotations

import os
from pathlib import Path

import pytest

from retrieval.errors import UnreadableFile
from retrieval.loaders import formats, source
from retrieval.loaders.source import FILE_BYTES_MAX, decode, read_bytes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_text_in_a_usual_encoding_is_read(encoding: str) -> None:
    text = "Die Größe der Tür überrascht: müßig, schön, fröhlich. " * 3
    assert decode(text.encode(encoding)) == text


def test_line_ends_become_one_kind() -> None:
    assert decode(b"a\r\nb\rc\n") == "a\nb\nc\n"


def test_what_is_not_utf8_further_on_is_read_as_guessed_from_the_beginning() -> None:
    body = "schöne grüße aus köln. ".encode("cp1252") * 5000
    assert len(body) > source.DETECT_BYTES_MAX
    assert "grüße" in decode(body)


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x00\x00", b"PK\x03\x04\x00\x00\xff\xfe", b"text\0text"])
def test_binary_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableFile, match="not text"):
        decode(data)


def test_a_byte_order_mark_alone_is_no_text() -> None:
    with pytest.raises(UnreadableFile, match="no text"):
        decode(b"\xef\xbb\xbf \n")


def test_empty_missing_and_too_large_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.md").write_bytes(b" \n")
    with (tmp_path / "large.md").open("wb") as large:
        large.truncate(FILE_BYTES_MAX + 1)
    for path, reason in [
        (tmp_path / "empty.md", "is empty"),
        (tmp_path / "large.md", "larger than 10 MB"),
        (tmp_path / "missing.md", "no such file"),
        (tmp_path, "not a file"),
    ]:
        with pytest.raises(UnreadableFile, match=reason):
            read_bytes(path)


def test_what_the_system_says_against_reading_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="cannot be read: File name too long"):
        read_bytes(tmp_path / ("x" * 300))


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises(UnreadableFile, match="not a file"):
        read_bytes(tmp_path / "pipe.md")


def test_a_kind_of_file_that_no_loader_reads_is_refused_with_those_that_are_read() -> None:
    with pytest.raises(UnreadableFile, match=r"\*\.exe, which cannot be read; supported are: .*\.html .*\.md"):
        formats.load(Path("setup.exe"), b"MZ")


def test_the_end_of_a_name_decides_in_any_case() -> None:
    assert formats.load(Path("READ-me_first.TXT"), b"text").title == "READ me first"
    assert formats.load(Path("Page.HTML"), b"<p>text").media_type == "text/html"
