"""The recipe on a very small model: the bundled demo-chat."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import astuple, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader

from training import base
from training.conversations import Tree
from training.packed import Packed, read
from training.rows import Writer, encoded, packed
from training.train import ATTENTIONS, SAFE, Plan, Trainer, ready, run

MODEL = base.BUNDLED / "demo-chat-q8_0.gguf"
TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}
LOGITS = """
import json, sys
import llama_cpp, numpy
model = llama_cpp.Llama(sys.argv[1], n_ctx=256, lora_path=sys.argv[2], logits_all=True, verbose=False, n_threads=1)
model.eval(json.loads(sys.argv[3]))
print(json.dumps(numpy.array(model.scores[: model.n_tokens]).tolist()))
"""


def said(user: str, assistant: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


TREE = Tree(
    {"role": "system", "content": "Be brief."},
    [TOOL],
    [said("Where?", "Here."), said("What is it that you want?", "Nothing at all."), said("Who?", "Me.")],
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return base.tokenizer(MODEL)


@pytest.fixture(scope="module")
def rows(tokenizer: Any) -> Packed:
    return packed(tokenizer, repeat(TREE), 4, 256)


@pytest.fixture(scope="module")
def plan(rows: Packed, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    out = tmp_path_factory.mktemp("run")
    rows.write(out / "rows.npz")
    small = Plan(MODEL, out / "rows.npz", out, out / "rows.npz", steps=6, rate=4e-3, rank=8, alpha=16)
    return replace(small, batch=2, together=1, compiled=False)


@pytest.fixture(scope="module")
def trainer(plan: Plan) -> Trainer:
    return Trainer(plan, 256)


def table(rows: Packed) -> torch.Tensor:
    return torch.from_numpy(rows.table())


def learnt(rows: Packed, tokenizer: Any) -> str:
    return str(tokenizer.decode(rows.ids[0][rows.learnt[0]].tolist()))


def test_what_the_assistant_says_is_learnt_and_nothing_else(tokenizer: Any) -> None:
    row = packed(tokenizer, chain([TREE], repeat(Tree(TREE.system, [], []), 99)), 1, 256)
    assert learnt(row, tokenizer) == "Here.<|im_end|>\nNothing at all.<|im_end|>\nMe.<|im_end|>\n"


def test_an_earlier_answer_is_not_learnt_where_its_passages_are_gone(tokenizer: Any) -> None:
    branch = said("Where?", "Here [1].") + said("And what?", "That.") + said("And who?", "Me.")
    branch[1]["learnt"] = False
    ((ids, marks),) = encoded(tokenizer, Tree(TREE.system, [], [branch])).branches
    learnt = [id for id, mark in zip(ids, marks, strict=True) if mark]
    assert tokenizer.decode(learnt) == "That.<|im_end|>\nMe.<|im_end|>\n"


def test_a_stem_and_a_branch_are_the_tokens_of_the_whole_conversation(tokenizer: Any) -> None:
    made = encoded(tokenizer, TREE)
    for branch, (ids, marks) in zip(TREE.branches, made.branches, strict=True):
        whole = tokenizer.apply_chat_template(
            [TREE.system, *branch], tools=TREE.tools, return_dict=True, return_assistant_tokens_mask=True
        )
        assert made.stem + ids == whole["input_ids"]
        assert [0] * len(made.stem) + marks == whole["assistant_masks"]


def test_a_row_is_filled_with_branches_of_several_trees_each_after_its_stem(rows: Packed, tokenizer: Any) -> None:
    made = encoded(tokenizer, TREE)
    filled = [len(piece) for piece, _ in [(made.stem, None), *made.branches]]
    assert rows.pieces[:4].tolist() == filled
    assert rows.stems[:5].tolist() == [True, False, False, False, True]
    assert rows.pieces.sum() == rows.ids.size
    assert (rows.ids != 0).mean() > 0.7


def test_a_branch_that_is_too_long_for_a_row_is_dropped(tokenizer: Any) -> None:
    tree = Tree(TREE.system, [], [said("Where?", "Here."), said("word " * 300, "No.")])
    assert len(encoded(tokenizer, tree, 256).branches) == 1


def test_rows_are_the_same_however_many_processes_write_them_and_come_back_from_their_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("training.rows.PART_ROWS", 3)
    alone, together = (Writer(MODEL, "any").rows(5, processes) for processes in (1, 2))
    together.write(tmp_path / "rows.npz")
    for ours, theirs in zip(astuple(alone), astuple(read(tmp_path / "rows.npz")), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(alone.ids) == 5
    assert (alone.ids[0] != alone.ids[3]).any()


def test_a_packed_branch_is_computed_as_if_it_stood_alone(tokenizer: Any, trainer: Trainer, rows: Packed) -> None:
    made = encoded(tokenizer, TREE)
    before, branch = len(made.stem) + len(made.branches[0][0]), made.branches[1][0]
    single = packed(tokenizer, repeat(Tree(TREE.system, [TOOL], TREE.branches[1:2])), 1, 256)
    with torch.no_grad():
        together, alone = (trainer.hidden(table(each)[:1])[0] for each in (rows, single))
    torch.testing.assert_close(
        together[before : before + len(branch)],
        alone[len(made.stem) : len(made.stem) + len(branch)],
        rtol=0.05,
        atol=0.05,
    )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_every_attention_sees_the_same(trainer: Trainer, plan: Plan, rows: Packed) -> None:
    batch = table(rows)[:1]
    with torch.no_grad():
        for attention in ("sdpa", "flex"):
            other = Trainer(replace(plan, attention=attention), 256)
            other.model.load_state_dict(trainer.model.state_dict())
            assert other.judged(batch) == pytest.approx(trainer.judged(batch), rel=0.02)


def test_where_a_way_to_compute_fails_the_next_one_is_taken(
    plan: Plan, rows: Packed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ATTENTIONS, "flex", _broken)
    made = ready(replace(plan, attention="flex"), table(rows))
    assert made.plan.attention == SAFE
    assert "flex, compiled=False: RuntimeError: no kernel" in capsys.readouterr().out


def _broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no kernel")


def test_training_lowers_the_loss_and_leaves_its_weights(plan: Plan) -> None:
    lines = list(run(plan))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["thousandths"] < max(line["thousandths"] for line in lines)
    assert "held_out" in lines[0]
    assert (plan.out / "last" / base.WEIGHTS).exists()


def test_the_file_of_an_adapter_is_what_was_trained(
    trainer: Trainer, rows: Packed, tokenizer: Any, tmp_path: Path
) -> None:
    """llama.cpp computes with the file what the trainer computes, in a process of its own: PyTorch and llama.cpp cannot
    share a thread."""
    batch = table(rows)[:2]
    for _ in range(4):
        trainer.step(batch, 2e-3)
    target = tmp_path / "adapter.gguf"
    base.adapter(trainer.save(), target, "F16")
    ids = tokenizer.apply_chat_template([TREE.system, *TREE.branches[0]], tools=[TOOL], return_dict=True)["input_ids"]
    one = Tree(TREE.system, [TOOL], TREE.branches[:1])
    asked = [sys.executable, "-c", LOGITS, str(MODEL), str(target), json.dumps(ids)]
    theirs = torch.tensor(json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout))
    exact = base.model(MODEL, torch.float32)
    with torch.no_grad():
        plain = exact(torch.tensor([ids])).logits[0]
        hidden = trainer.hidden(table(packed(tokenizer, repeat(one), 1, len(ids))))[0]
        ours = (hidden @ trainer.head.T).float()
    change, off = (ours - plain).abs().mean(), (ours - theirs).abs().mean()
    assert off < change / 4


def test_training_goes_on_from_the_file_of_an_adapter(trainer: Trainer, rows: Packed, tmp_path: Path) -> None:
    trainer.step(table(rows)[:2], 2e-3)
    target = tmp_path / "adapter.gguf"
    base.adapter(trainer.save(), target, "F16")
    read = base.started(target, trainer.heads)
    assert read.keys() == trainer.trained.keys()
    for name, weight in trainer.trained.items():
        torch.testing.assert_close(read[name], weight.detach(), rtol=1e-3, atol=1e-4)


def test_the_file_of_an_adapter_names_its_kind_and_its_scale(trainer: Trainer, tmp_path: Path) -> None:
    target = tmp_path / "adapter.gguf"
    base.adapter(trainer.save(), target)
    reader = GGUFReader(target)
    assert reader.fields["adapter.type"].contents() == "lora"
    assert reader.fields["adapter.lora.alpha"].contents() == trainer.plan.alpha
    layers = 6
    assert len(reader.tensors) == layers * len(base.NAMES) * 2
