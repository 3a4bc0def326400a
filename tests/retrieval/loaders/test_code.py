from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.loaders import formats


@pytest.mark.parametrize(
    ("name", "source", "headings"),
    [
        ("a.py", "import os\n\nclass Dog:\n    async def bark(self):\n        pass\n\ndef main():\n    pass\n",
         ["", "Dog", "Dog > bark", "main"]),
        ("a.go", "package a\nfunc (d *Dog) Bark() {}\ntype Cat struct {}\n", ["", "Bark", "Cat"]),
        ("a.rs", "pub(crate) async fn run() {}\nimpl Dog {\n    pub fn new() {}\n}\n", ["run", "Dog", "Dog > new"]),
        ("a.ts", "export default function go() {}\nexport class Dog {}\n", ["go", "Dog"]),
    ],
)  # fmt: skip
def test_definitions_give_the_sections_and_belong_to_them(name: str, source: str, headings: list[str]) -> None:
    document = formats.load(Path("src", name), source.encode())
    assert (document.title, document.text) == (name, source)
    assert [part.heading for part in document.sections] == headings
    assert "".join(source[part.start : part.end] for part in document.sections) == source
