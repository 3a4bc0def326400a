"""The sampling that a model's file recommends: what of it counts, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.bundled import DRAFT_MODEL
from inference.generation import Sampling
from inference.llama import LlamaModel
from inference.provisioning.gguf_metadata import read_metadata
from inference.sampling_defaults import SamplingDefaults
from tests.inference.variants import write_variant


def read(**given: str) -> SamplingDefaults:
    return SamplingDefaults.read({f"general.sampling.{key}": text for key, text in given.items()})


def test_a_file_recommends_sampling(tmp_path: Path) -> None:
    facts = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.top_p": 0.95}
    write_variant(DRAFT_MODEL, tmp_path / "own.gguf", facts)
    usual = read_metadata(LlamaModel.load(tmp_path / "own.gguf", weights=False)).sampling
    assert usual.stated == pytest.approx({"temperature": 0.6, "top_k": 20, "top_p": 0.95})
    assert str(usual) == "temperature 0.6, top_k 20, top_p 0.95, by default min_p 0.05"


def test_what_a_file_does_not_recommend_is_llama_cpp_s_default() -> None:
    assert SamplingDefaults.read({"general.name": "x"}) == SamplingDefaults()
    assert SamplingDefaults().values == {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    assert read(top_k="0").values == {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.05}


@pytest.mark.parametrize("text", ["-1", "2.5", "nan", "inf", "", "warm"])
def test_what_no_request_could_ask_for_has_no_effect(text: str) -> None:
    assert read(temp=text) == SamplingDefaults({}, {"temp": text})


def test_samplers_that_are_not_there_are_told_unless_they_are_off() -> None:
    usual = read(temp="0.7", penalty_repeat="1.05", mirostat="2", xtc_probability="0.000000", sequence="k;p")
    assert usual.stated == {"temperature": 0.7, "repeat_penalty": 1.05}
    assert str(usual).endswith("; mirostat 2 has no effect; sequence k;p has no effect")


def test_a_request_leaves_to_the_model_what_it_does_not_set() -> None:
    asked = Sampling(temperature=0.2, open=frozenset({"top_p", "top_k"}))
    usual = {"temperature": 0.6, "top_p": 0.95}
    assert asked.completed(usual) == Sampling(temperature=0.2, top_p=0.95)
    assert Sampling(temperature=0.2).completed(usual) == Sampling(temperature=0.2)
