"""LoRA on all linear layers, with peft: rows of trees, fixed steps, a checkpoint from time to time."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface

from training import base
from training.conversations import Conversations, Tree, accepted
from training.rows import Batch, Rows

STEPS, SEED = 360, "adapter"  # of the bundled adapter
ACCEPTED_EVERY = 3  # trees, where there are accepted answers


@dataclass(frozen=True, slots=True)
class Plan:
    base: Path
    out: Path
    steps: int = STEPS
    length: int = 768
    rows: int = 2
    rate: float = 8e-4
    rank: int = 32
    warmup: int = 10
    averaged: int = 30  # steps over which the saved weights are averaged, so that any checkpoint is a good one
    save_every: int = 20
    seed: str = SEED
    start: Path | None = None  # a checkpoint to go on from, with the optimizer anew
    accepted: Path | None = None  # answers of a running platform, for a share of the trees
    compiled: bool = True


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Plain products of matrices: on a CPU with AMX their gradients take a third of the time that torch's own
    attention takes. The query heads of one key head are rows of one product."""
    rows, heads, length, size = query.shape
    groups = key.shape[1]
    together = query.reshape(rows * groups, -1, size) * options["scaling"]
    scores = torch.bmm(together, key.reshape(rows * groups, length, size).transpose(1, 2))
    seen = scores.view(rows, groups, heads // groups, length, length) + attention_mask[:, :, None]
    shares = torch.softmax(seen, -1).view(rows * groups, -1, length)
    found = torch.bmm(shares, value.reshape(rows * groups, length, size)).view(rows, heads, length, size)
    return found.transpose(1, 2).contiguous(), None


class Trainer:
    """Computes in bfloat16; the weights of the adapter are kept in float32, where small steps are not lost."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(0)
        AttentionInterface.register("products", attend)
        model = base.model(plan.base)
        model.config._attn_implementation = "products"
        self.heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
        lora = LoraConfig(r=plan.rank, lora_alpha=2 * plan.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        self.net = get_peft_model(model, lora, autocast_adapter_dtype=False)
        if plan.start is not None:
            set_peft_model_state_dict(self.net, load_file(plan.start / "adapter_model.safetensors"))
        self.inner, self.head = self.net.base_model.model.model, self.net.base_model.model.lm_head
        if plan.compiled:
            for layer in self.inner.layers:
                layer.compile(dynamic=False)  # one compilation serves all
        self.trained = [weight for weight in self.net.parameters() if weight.requires_grad]
        self.exact = [weight.detach().float() for weight in self.trained]
        self.optimizer = torch.optim.AdamW(self.exact, lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.average = [weight.clone() for weight in self.exact]
        self.plan = plan

    def step(self, batch: Batch, number: int) -> tuple[float, float]:
        """The loss, and the norm of its gradient."""
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        for exact, weight in zip(self.exact, self.trained, strict=True):
            exact.grad = weight.grad.float() if weight.grad is not None else None
            weight.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.exact, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate * min(1.0, (number + 1) / self.plan.warmup)
        self.optimizer.step()
        with torch.no_grad():
            for exact, weight in zip(self.exact, self.trained, strict=True):
                weight.copy_(exact)
            for average, exact in zip(self.average, self.exact, strict=True):
                average.lerp_(exact, max(1 / (number + 1), 1 / self.plan.averaged))
        return loss.item(), float(norm)

    def loss(self, batch: Batch) -> torch.Tensor:
        """The mean over the learnt tokens. Only they need logits."""
        hidden = self.inner(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.mask, use_cache=False
        ).last_hidden_state
        rows, at = batch.weight.nonzero(as_tuple=True)
        logits = self.head(hidden[rows, at])
        return cross_entropy(logits.float(), batch.target[rows, at])

    def save(self, name: str) -> Path:
        """The averaged weights."""
        folder = self.plan.out / name
        for average, weight in zip(self.average, self.trained, strict=True):
            weight.data.copy_(average)
        self.net.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / "heads.json").write_text(json.dumps(self.heads))
        for exact, weight in zip(self.exact, self.trained, strict=True):
            weight.data.copy_(exact)
        return folder


def _mixed(trees: Iterator[Tree], others: Iterator[Tree]) -> Iterator[Tree]:
    for number, tree in enumerate(trees):
        yield next(others) if number % ACCEPTED_EVERY == 0 else tree


def run(plan: Plan) -> Iterator[dict[str, Any]]:
    """Trains, and yields a line for each step. The last checkpoint is the folder `last`."""
    plan.out.mkdir(parents=True, exist_ok=True)
    (plan.out / "plan.json").write_text(json.dumps(asdict(plan), default=str, indent=1))
    trees = Conversations(plan.seed).trees()
    if plan.accepted is not None:
        trees = _mixed(trees, accepted(plan.accepted))
    rows = Rows(base.tokenizer(plan.base), trees, plan.length, plan.rows)
    trainer = Trainer(plan)
    begun, average, tokens, learnt = time.monotonic(), math.nan, 0, 0
    for step in range(plan.steps):
        batch = rows.batch()
        loss, norm = trainer.step(batch, step)
        if not math.isfinite(loss):
            raise ArithmeticError(f"the loss of step {step} is {loss}")
        average = loss if math.isnan(average) else 0.95 * average + 0.05 * loss
        tokens += batch.ids.numel()
        learnt += int(batch.weight.sum())
        if (step + 1) % plan.save_every == 0:
            trainer.save(f"step-{step + 1}")
        yield {
            "step": step + 1,
            "minutes": round((time.monotonic() - begun) / 60, 2),
            "cpu_minutes": round(time.process_time() / 60, 2),
            "loss": round(loss, 4),
            "average": round(average, 4),
            "norm": round(norm, 3),
            "tokens": tokens,
            "learnt": learnt,
        }
    trainer.save("last")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoints and the log")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--start", type=Path, help="checkpoint to go on from")
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("--accepted", type=Path, help="what `firsttoken eval export` printed, mixed in")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="without a compiler: half as fast")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    plan = Plan(
        args.base,
        args.out,
        args.steps,
        seed=args.seed,
        start=args.start,
        accepted=args.accepted,
        compiled=not args.eager,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "log.jsonl").open("a") as log:
        for line in run(plan):
            told = json.dumps(line)
            print(told, file=log, flush=True)
            print(told, flush=True)


if __name__ == "__main__":
    main()
