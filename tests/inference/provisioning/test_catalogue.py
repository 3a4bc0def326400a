"""The catalogue is consistent, and a name leads to one file or to what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.bundled import CHAT_MODEL, DRAFT_MODEL, EMBEDDER
from inference.errors import ModelNotLoaded
from inference.llama import LlamaContext, LlamaModel
from inference.provisioning.catalogue import BUNDLED, HUB_FILE, PRESETS, SMOL_CHAT, Preset, find, preset
from inference.provisioning.gguf_metadata import read_metadata, template_kind, title


def test_names_are_unique_and_drafts_exist() -> None:
    names = [*(model.name for model in BUNDLED), *(model.name for model in PRESETS)]
    assert len(set(names)) == len(names)
    assert len({model.file_name for model in PRESETS}) == len(PRESETS)
    for model in PRESETS:
        draft = preset(model.draft) if model.draft else None
        assert draft is not None or model.draft is None
        assert draft is None or (draft.size < model.size / 2 and family(draft.name) == family(model.name))
        assert model.sha256 is None or (len(model.sha256) == 64 and int(model.sha256, 16))
        assert HUB_FILE.fullmatch(f"{model.repository}/{model.file}")


def family(name: str) -> str:
    """What a vocabulary goes by."""
    return name.split("-")[0]


@pytest.mark.parametrize(
    "model", [each for each in PRESETS if each.recurrent[0] or each.windows[0]], ids=lambda model: model.name
)
def test_what_goes_back_to_checkpoints_says_whether_they_were_verified(model: Preset) -> None:
    assert "checkpoints are verified" in model.note or "checkpoints are not tried" in model.note


def test_the_address_of_a_preset_is_the_hubs_usual_one() -> None:
    model = preset("qwen3-8b")
    assert model is not None
    assert model.url("https://hub.test/") == "https://hub.test/Qwen/Qwen3-8B-GGUF/resolve/main/Qwen3-8B-Q4_K_M.gguf"


@pytest.mark.parametrize("name", ["owner/repository/../file.gguf", "/etc/x/y.gguf", "owner/file.gguf", "a/b/c.bin"])
def test_what_is_no_file_of_a_hub_is_not_taken_for_one(name: str) -> None:
    assert HUB_FILE.fullmatch(name) is None


def test_a_name_finds_bundled_pulled_and_own_files(tmp_path: Path) -> None:
    (tmp_path / "Qwen3-8B-Q4_K_M.gguf").touch()
    (tmp_path / "mine.gguf").touch()
    assert find(None, tmp_path) == find(Path("demo-chat"), tmp_path) == CHAT_MODEL
    (tmp_path / SMOL_CHAT.file_name).touch()
    assert find(None, tmp_path) == find(Path("smol-chat"), tmp_path) == tmp_path / SMOL_CHAT.file_name
    assert find(Path("demo-draft"), tmp_path) == DRAFT_MODEL
    assert find(Path("qwen3-8b"), tmp_path) == tmp_path / "Qwen3-8B-Q4_K_M.gguf"
    assert find(Path("mine"), tmp_path) == find(Path("mine.gguf"), tmp_path) == tmp_path / "mine.gguf"
    assert find(EMBEDDER, tmp_path) == EMBEDDER


def test_a_name_that_leads_nowhere_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").touch()
    with pytest.raises(ModelNotLoaded, match=r"available are demo-chat, .*mine\.gguf; .*can be pulled"):
        find(Path("yours"), tmp_path)
    with pytest.raises(ModelNotLoaded, match="firsttoken models pull qwen3-8b"):
        find(Path("qwen3-8b"), tmp_path)
    with pytest.raises(ModelNotLoaded, match=r"no model file at /nowhere/x\.gguf"):
        find(Path("/nowhere/x.gguf"), tmp_path)


def test_the_facts_of_a_file_come_without_its_weights() -> None:
    model = LlamaModel.load(CHAT_MODEL, weights=False)
    facts = read_metadata(model)
    assert (facts.architecture, facts.quantisation, facts.parameters) == ("llama", "Q8_0", 11_408_256)
    assert (facts.context, facts.layers, facts.dimensions, facts.vocabulary) == (2048, 6, 384, 5120)
    assert facts.template == "ChatML" and facts.licence == "Apache-2.0"
    assert str(facts.capabilities) == "system messages anywhere; turns: any order; tools: of the template"
    with pytest.raises(ModelNotLoaded, match="without its weights"):  # it would compute with memory that is not there
        LlamaContext(model, slots=1, context=256, rows_max=8, threads=1)
    model.close()


def test_template_kinds_are_told_apart() -> None:
    assert template_kind(None).startswith("none")
    assert template_kind("{{ '<|start_header_id|>' }}") == "Llama 3"
    assert template_kind("{{ messages }}").startswith("of another family")


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ("Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2-135M-Instruct"),  # the folder of a training run
        ("7ae557604adf67be50417f59c2c2f167def9a775", "SmolLM2-135M-Instruct"),  # that of a download
        ("Checkpoint 3000", "SmolLM2-135M-Instruct"),
        ("", "SmolLM2-135M-Instruct"),
        ("SmolLM2 135M Instruct", "SmolLM2 135M Instruct"),
        ("A Model of Mine", "A Model of Mine"),
    ],
)
def test_a_title_that_a_converter_made_of_a_folder_is_not_shown(stated: str, shown: str) -> None:
    assert title(stated, "SmolLM2-135M-Instruct") == shown
