"""What the settings make of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.bundled import DRAFT_MODEL
from inference.config import FORCED_TOKENS_MAX
from inference.provisioning.catalogue import SMOL_CHAT
from worker.config import Config
from worker.engines.engine_config import engine_config, load_for
from worker.errors import StartError


def test_a_draft_model_is_found_by_its_name(tmp_path: Path) -> None:
    engine = engine_config(Config(home=tmp_path, draft=Path("demo-draft")))
    assert (engine.draft_path, engine.lookup) == (DRAFT_MODEL, False)


def test_lookup_needs_no_model(tmp_path: Path) -> None:
    engine = engine_config(Config(home=tmp_path, draft=Path("lookup")))
    assert (engine.draft_path, engine.lookup) == (None, True)
    assert engine.outputs_max == (engine.parallel + engine.guests) * (1 + engine.draft_max) + FORCED_TOKENS_MAX


def test_without_the_flag_nothing_drafts(tmp_path: Path) -> None:
    engine = engine_config(Config(home=tmp_path))
    rows = engine.parallel + engine.guests + FORCED_TOKENS_MAX
    assert (engine.draft_path, engine.lookup, engine.outputs_max) == (None, False, rows)


@pytest.mark.parametrize(
    ("asked", "draft", "lookup"),
    [(None, None, True), (Path("none"), None, False), (Path("demo-draft"), DRAFT_MODEL, False)],
)
def test_the_model_whose_answers_quote_drafts_by_lookup_unless_told_otherwise(
    tmp_path: Path, asked: Path | None, draft: Path | None, lookup: bool
) -> None:
    made = tmp_path / "models" / SMOL_CHAT.file_name
    made.parent.mkdir()
    made.touch()
    engine = engine_config(Config(home=tmp_path, draft=asked))
    assert (engine.model_path, engine.draft_path, engine.lookup) == (made, draft, lookup)


@pytest.mark.parametrize(("asked", "allowed"), [(None, True), (Path("lookup"), True), (Path("none"), False)])
def test_what_requests_predict_is_drafted_unless_nothing_may_be(
    tmp_path: Path, asked: Path | None, allowed: bool
) -> None:
    assert engine_config(Config(home=tmp_path, draft=asked)).predictions is allowed


def test_an_adapter_is_refused_by_its_own_setting(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no adapter file at .*absent\.gguf.* \(--lora\)$"):
        load_for("--model", engine_config, Config(home=tmp_path, lora=f"{tmp_path}/absent.gguf"))
    with pytest.raises(StartError, match=r"no model absent: .* \(--model\)$"):
        load_for("--model", engine_config, Config(home=tmp_path, model=Path("absent")))
