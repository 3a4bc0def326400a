from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.sources import walk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.md", "sub/b.txt", "sub/deep/c.html", "sub/image.png", ".hidden.md", ".git/d.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    return tmp_path


def test_a_folder_gives_the_files_that_can_be_read_named_below_it(folder: Path) -> None:
    listing = walk([folder])
    assert list(listing.files.values()) == ["a.md", "sub/b.txt", "sub/deep/c.html"]
    assert listing.skipped == 1
    assert not listing.errors


def test_a_named_file_is_taken_whatever_its_name(folder: Path) -> None:
    assert list(walk([folder / ".hidden.md", folder / "none.pdf"]).files.values()) == [".hidden.md", "none.pdf"]


def test_a_file_named_twice_is_read_once(folder: Path) -> None:
    assert len(walk([folder, folder / "a.md", folder / "sub", folder / "sub" / ".." / "a.md"]).files) == 3


def test_links_to_folders_are_not_followed(folder: Path) -> None:
    (folder / "sub" / "loop").symlink_to(folder)
    assert len(walk([folder]).files) == 3


def test_what_stood_in_a_walked_folder_and_stands_there_no_more_is_gone(folder: Path) -> None:
    known = [str(folder / name) for name in ("a.md", "old.md", "sub/older.md")] + ["/elsewhere/x.md"]
    assert walk([folder]).deleted(known) == known[1:3]
    assert walk([folder / "sub"]).deleted(known) == known[2:3]
    assert walk([folder / "old.md"]).deleted(known) == []


def test_names_to_leave_out_are_left_out_of_folders_and_gone_where_they_were_in(folder: Path) -> None:
    listing = walk([folder, folder / "sub" / "b.txt"], exclude=["a.md", "b.txt"])
    assert list(listing.files.values()) == ["sub/deep/c.html", "b.txt"]
    assert listing.deleted([str(folder / "a.md"), str(folder / "sub" / "b.txt")]) == [str(folder / "a.md")]


def test_a_folder_with_a_longer_name_is_another_folder(folder: Path) -> None:
    assert walk([folder / "sub"]).deleted([str(folder / "submarine" / "x.md")]) == []


def test_what_lies_in_a_folder_that_vanished_is_not_gone(folder: Path) -> None:
    assert walk([folder / "unmounted"]).deleted([str(folder / "unmounted" / "x.md")]) == []


def test_files_stored_below_a_name_are_the_same_in_another_folder(folder: Path) -> None:
    listing = walk([folder], stored_below="docs")
    assert [source.place for source in listing.sources] == ["docs/a.md", "docs/sub/b.txt", "docs/sub/deep/c.html"]
    known = ["docs/a.md", "docs/old.md", "/elsewhere/a.md", str(folder / "a.md")]
    assert listing.deleted(known) == ["docs/old.md", str(folder / "a.md")]
    assert walk([folder / "unmounted"], stored_below="docs").deleted(known) == []


def test_too_many_files_are_reported(folder: Path) -> None:
    listing = walk([folder], files_max=2)
    assert len(listing.files) == 2
    assert "more than 2 files" in listing.errors[0].reason
    assert listing.deleted([str(folder / "sub" / "deep" / "c.html")]) == []


def test_a_pattern_that_the_shell_left_is_matched_here(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.md", "deep/b.md", "c.txt"):
        (tmp_path / name).write_text("x")
    assert set(walk([tmp_path / "**" / "*.md"]).files) == {tmp_path / "a.md", tmp_path / "deep" / "b.md"}
    assert [error.reason for error in walk([tmp_path / "*.pdf"]).errors] == ["matches no file"]


def test_what_machines_put_beside_source_code_is_left_out(tmp_path: Path) -> None:
    for name in ("node_modules", "src"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.js").write_text("x")
    assert set(walk([tmp_path]).files) == {tmp_path / "src" / "a.js"}
