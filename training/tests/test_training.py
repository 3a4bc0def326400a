"""The recipe on a very small model: the bundled demo-chat."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader

from training import base
from training.conversations import Tree
from training.rows import Rows, encoded
from training.train import Plan, Trainer, run

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
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    out = tmp_path_factory.mktemp("run")
    return Plan(MODEL, out, steps=6, length=256, rows=2, rank=8, warmup=2, averaged=2, compiled=False, save_every=4)


@pytest.fixture(scope="module")
def trainer(plan: Plan) -> Trainer:
    return Trainer(plan)


def test_what_the_assistant_says_is_learnt_and_nothing_else(tokenizer: Any) -> None:
    (row,) = encoded(tokenizer, TREE, 256)
    learnt = [id for id, weight in zip(row.ids, row.learnt, strict=True) if weight]
    assert tokenizer.decode(learnt) == "Here.<|im_end|>\nNothing at all.<|im_end|>\nMe.<|im_end|>\n"


def test_an_earlier_answer_is_not_learnt_where_its_passages_are_gone(tokenizer: Any) -> None:
    branch = said("Where?", "Here [1].") + said("And what?", "That.")
    branch[1]["learnt"] = False
    (row,) = encoded(tokenizer, Tree(TREE.system, [], [branch]), 256)
    learnt = [id for id, weight in zip(row.ids, row.learnt, strict=True) if weight]
    assert tokenizer.decode(learnt) == "That.<|im_end|>\n"


def test_branches_that_do_not_fit_beside_each_other_get_rows_of_their_own(tokenizer: Any) -> None:
    (whole,) = encoded(tokenizer, TREE, 256)
    rows = list(encoded(tokenizer, TREE, len(whole.ids) - 1))
    assert [max(row.branch) for row in rows] == [2, 1]


def test_a_branch_that_is_too_long_for_a_row_is_dropped(tokenizer: Any) -> None:
    tree = Tree(TREE.system, [], [said("Where?", "Here."), said("word " * 300, "No.")])
    (row,) = encoded(tokenizer, tree, 256)
    assert max(row.branch) == 1


def test_a_packed_branch_is_computed_as_if_it_stood_alone(tokenizer: Any, trainer: Trainer) -> None:
    batch = Rows(tokenizer, iter([TREE] * 20), 256, 2).batch()
    with torch.no_grad():
        together = trainer.inner(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.mask, use_cache=False
        ).last_hidden_state
        alone = tokenizer.apply_chat_template([TREE.system, *TREE.branches[1]], tools=[TOOL], return_dict=True)[
            "input_ids"
        ]
        one = Rows(tokenizer, iter([Tree(TREE.system, [TOOL], TREE.branches[1:2])] * 20), 256, 1).batch()
        single = trainer.inner(
            input_ids=one.ids, position_ids=one.positions, attention_mask=one.mask, use_cache=False
        ).last_hidden_state
    last = alone[-3]
    (row,) = encoded(tokenizer, TREE, 256)
    at = max(i for i, id in enumerate(row.ids) if id == last and row.branch[i] == 2)
    assert batch.ids[0, at] == one.ids[0, len(alone) - 3] == last
    torch.testing.assert_close(together[0, at], single[0, len(alone) - 3], rtol=0.05, atol=0.05)


def test_training_lowers_the_loss_and_leaves_checkpoints(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.train.Conversations", lambda _: _Endless())
    lines = list(run(plan))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert {path.name for path in plan.out.iterdir() if path.is_dir()} == {"step-4", "last"}


class _Endless:
    def trees(self) -> Any:
        return (TREE for _ in count())


def test_the_file_of_an_adapter_is_what_was_trained(
    trainer: Trainer, plan: Plan, tokenizer: Any, tmp_path: Path
) -> None:
    """llama.cpp computes with the file what the trainer computes, in a process of its own: PyTorch and llama.cpp cannot
    share a thread."""
    batch = Rows(tokenizer, iter([TREE] * 20), 256, 2).batch()
    for step in range(4):
        trainer.step(batch, step)
    target = tmp_path / "adapter.gguf"
    base.adapter(trainer.save("exported"), target, "F16")
    ids = tokenizer.apply_chat_template([TREE.system, *TREE.branches[0]], tools=[TOOL], return_dict=True)["input_ids"]
    asked = [sys.executable, "-c", LOGITS, str(MODEL), str(target), json.dumps(ids)]
    theirs = torch.tensor(json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout))
    exact = base.model(MODEL, torch.float32)
    with torch.no_grad():
        plain = exact(torch.tensor([ids])).logits[0]
        for average, weight in zip(trainer.average, trainer.trained, strict=True):
            weight.data.copy_(average)
        ours = trainer.net(input_ids=torch.tensor([ids]), attention_mask=_causal(len(ids))).logits[0].float()
    moved, off = (ours - plain).abs().mean(), (ours - theirs).abs().mean()
    assert off < moved / 4


def _causal(length: int) -> torch.Tensor:
    hidden = torch.full((length, length), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16)
    return torch.triu(hidden, 1)[None, None]


def test_the_file_of_an_adapter_names_its_kind_and_its_scale(trainer: Trainer, tmp_path: Path) -> None:
    target = tmp_path / "adapter.gguf"
    base.adapter(trainer.save("named"), target)
    reader = GGUFReader(target)
    assert reader.fields["adapter.type"].contents() == "lora"
    assert reader.fields["adapter.lora.alpha"].contents() == 2 * trainer.plan.rank
    layers = 6
    assert len(reader.tensors) == layers * len(base.NAMES) * 2
