"""Texts that go on without an end for whatever splits them into words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundled import CHAT_MODEL, EMBEDDER
from inference.llama import LlamaModel
from inference.llama.weights import WINDOW_CHARS, cuts
from tests.inference.variants import KINDS, TOKENS, fact, write_variant

ROOT = Path(__file__).resolve().parents[3]
CHARS = 30_000  # of each run; 25,000 are too many for a thread of 8 MiB

# Vocabularies, and what their expressions go on over.
FAMILIES = {
    "tekken": ("a", "漢", " "),
    "gpt-4o": ("A", "/\n", "."),
    "exaone-moe": ("a ", "a\u0301 "),
    "bloom": ("a1", '{"a":1}'),
    "falcon": (".", "<"),
}
READ = """
import sys
from pathlib import Path
from inference.llama import LlamaModel

model = LlamaModel.load(Path(sys.argv[1]), weights=False)
for run in sys.argv[3:]:
    text = (run * int(sys.argv[2]))[: int(sys.argv[2])]
    for trusted in (False, True):
        ids = model.tokenize(text, parse_special=trusted)
        assert model.detokenize(ids).strip() == text.strip(), run
"""


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with closing(LlamaModel.load(CHAT_MODEL, weights=False)) as loaded:
        yield loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_of_whatever_a_vocabulary_goes_on_over_ends_no_process(family: str, tmp_path: Path) -> None:
    variant = tmp_path / "variant.gguf"
    write_variant(CHAT_MODEL, variant, {"tokenizer.ggml.pre": family})
    command = [sys.executable, "-c", READ, str(variant), str(CHARS), *FAMILIES[family]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@given(st.text("a1./é漢-\u0301\x1c", min_size=1, max_size=40))
def test_what_is_uncut_has_a_length(unit: str) -> None:
    text = (unit * 6000)[:6000]
    assert all(b - a < 2 * WINDOW_CHARS for a, b in pairwise([0, *cuts(text), len(text)]))


@pytest.mark.parametrize(
    "text",
    [
        "A sentence goes on, and the next one begins. " * 400,
        "def f(x):\n    return x\n\n" * 400,
        '{"city":"Bonn","days":[{"high":21,"low":9}]},' * 400,
    ],
)
def test_ordinary_text_has_the_tokens_that_it_always_had(text: str, model: LlamaModel) -> None:
    assert model.tokenize(text, parse_special=False) == model._tokenize(text, False, False)


def test_a_mark_is_not_cut_where_marks_are_tokens(model: LlamaModel) -> None:
    end = model.eos_text
    [token] = model.tokenize(end, parse_special=True)
    for before in range(WINDOW_CHARS - len(end), WINDOW_CHARS + 1):
        text = f"{'x' * before}{end}{'x' * WINDOW_CHARS}"
        assert model.tokenize(text, parse_special=True).count(token) == 1
        assert token not in model.tokenize(text, parse_special=False)


def test_a_text_that_is_cut_has_the_marks_of_its_ends_only_there(tmp_path: Path) -> None:
    tokens, kinds = list(fact(EMBEDDER, TOKENS)), list(fact(EMBEDDER, KINDS))
    tokens[-1], kinds[-1] = "[note]", gguf.TokenType.USER_DEFINED  # where it is in a text, it is cut
    write_variant(EMBEDDER, tmp_path / "variant.gguf", {TOKENS: tokens, KINDS: kinds})
    with closing(LlamaModel.load(tmp_path / "variant.gguf", weights=False)) as model:
        begin, end = model.ends
        bare = model.tokenize("one [note] two", parse_special=False)
        assert len(begin) == len(end) == 1 and len(bare) > 4
        assert model.tokenize("one [note] two", parse_special=False, add_special=True) == [*begin, *bare, *end]
