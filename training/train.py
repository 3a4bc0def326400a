"""LoRA on all linear layers, trained on the rows of a file: on a GPU if there is one, else on the processor.

python -m training.train --base FILE --rows rows.npz --held-out held-out.npz --out FOLDER --minutes 5
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention
from transformers import AttentionInterface

from training import base
from training.packed import read

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPU = DEVICE == "cuda"
SAFE = "sdpa" if GPU else "products"  # works wherever PyTorch does
WARM_UP = 40  # steps
SAVED_EVERY = 60.0  # seconds
TOLD_EVERY = 10.0  # seconds between two losses of the held-out rows


@dataclass(frozen=True, slots=True)
class Plan:
    base: Path
    rows: Path
    out: Path
    held_out: Path | None = None
    minutes: float = 5.0  # in all, with what is loaded and compiled; the rate falls to zero in this time
    steps: int = 0  # instead of the minutes
    batch: int = 32 if GPU else 8  # rows of a step
    together: int = 32 if GPU else 2  # rows that are computed at once: as many as memory holds
    rate: float = 1e-3
    rank: int = 64
    alpha: int = 64
    start: Path | None = None  # a folder or an adapter as GGUF to go on from, with the optimizer anew
    attention: str = "flex" if GPU else "products"
    compiled: bool = True


def dense(table: Tensor) -> Tensor:
    """rows x 1 x length x length: 0 where a token may look, else the lowest number."""
    first, root, stem = table[:, 2:, :, None].unbind(1)
    at = torch.arange(table.shape[2], device=table.device)
    seen = (at[:, None] >= at) & ((at >= first) | ((at >= root) & (at < stem)))
    mask = torch.zeros(seen.shape, dtype=torch.bfloat16, device=table.device)
    return mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)[:, None]


class Blocks:
    """The mask of flex attention. It looks at the same tensors for all batches: the compiler sees one mask."""

    def __init__(self, rows: int, length: int) -> None:
        first, root, stem = self.places = [
            torch.zeros((rows, length), dtype=torch.int32, device=DEVICE) for _ in range(3)
        ]

        def seen(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = key >= first[row, query]
            return (query >= key) & (own | ((key >= root[row, query]) & (key < stem[row, query])))

        self.seen = seen

    def __call__(self, table: Tensor) -> BlockMask:
        length = table.shape[2]
        for place, values in zip(self.places, table[:, 2:].unbind(1), strict=True):
            place[: len(values)] = values
        return create_block_mask(self.seen, len(table), None, length, length, DEVICE)


def products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Plain products of matrices: on a CPU with AMX their gradients take a third of the time that torch's own
    attention takes. The query heads of one key head are rows of one product."""
    rows, heads, length, size = query.shape
    groups = key.shape[1]
    together = query.reshape(rows * groups, -1, size) * scale
    scores = torch.bmm(together, key.reshape(rows * groups, length, size).transpose(1, 2))
    seen = scores.view(rows, groups, heads // groups, length, length) + mask[:, :, None]
    shares = torch.softmax(seen, -1).view(rows * groups, -1, length)
    return torch.bmm(shares, value.reshape(rows * groups, length, size)).view(rows, heads, length, size)


def flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Passes over the blocks that no token of a tree sees."""
    return flex_attention(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


ATTENTIONS: dict[str, Callable[..., Tensor]] = {"products": products, "flex": flex, "sdpa": sdpa}


def registered(name: str) -> str:
    """The name of one of these for the layers of transformers."""
    compute = ATTENTIONS[name]

    def attention(_: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> tuple[Tensor, None]:
        return compute(query, key, value, mask, options["scaling"]).transpose(1, 2).contiguous(), None

    AttentionInterface.register(f"own {name}", attention)
    return f"own {name}"


class Adapted(nn.Module):
    """A linear layer with its adapter. The two are added up before the product, which spares a pass over the tokens for
    each; in float32, because small weights are lost beside large ones in bfloat16."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Buffer(layer.weight.detach().float())
        outs, ins = layer.weight.shape
        self.lora_A, self.lora_B = nn.Parameter(torch.empty(rank, ins)), nn.Parameter(torch.zeros(outs, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scale = scale

    def forward(self, tokens: Tensor) -> Tensor:
        weight = self.weight + self.scale * (self.lora_B @ self.lora_A)
        return linear(tokens, weight.to(tokens.dtype))


class Trainer:
    """Computes in bfloat16; the weights of the adapter, their gradients and their moments are float32."""

    def __init__(self, plan: Plan, length: int) -> None:
        torch.set_float32_matmul_precision("high")
        self.plan = plan
        whole = base.model(plan.base, torch.float32).requires_grad_(False)
        self.heads = {"q_proj": whole.config.num_attention_heads, "k_proj": whole.config.num_key_value_heads}
        self.model, self.head = whole.model, whole.lm_head.weight.bfloat16().to(DEVICE)
        for layer in self.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name, child in list(part.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(part, name, Adapted(child, plan.rank, plan.alpha / plan.rank))
        self.model.to(DEVICE)
        for part in self.model.modules():
            if not list(part.children()) and not isinstance(part, Adapted):
                part.bfloat16()
        self.trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        if plan.start is not None:
            self.model.load_state_dict(base.started(plan.start, self.heads), strict=False)
        self.optimizer = torch.optim.AdamW(self.trained.values(), plan.rate, (0.9, 0.98), weight_decay=0.0, fused=GPU)
        self.model.config._attn_implementation = registered(plan.attention)
        self.mask = Blocks(plan.together, length) if plan.attention == "flex" else dense
        if plan.compiled:
            for layer in self.model.layers:
                layer.compile(dynamic=False)  # one compilation serves all

    def hidden(self, table: Tensor) -> Tensor:
        """Of rows x 5 x length as `Packed` has them: rows x length x width, after the last layer."""
        ids, _, first, root, stem = table.unbind(1)
        hidden = self.model.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device) - first + stem - root  # as it would have them alone
        angles, mask = self.model.rotary_emb(hidden, positions), self.mask(table)
        for layer in self.model.layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=angles, use_cache=False)
        return self.model.norm(hidden)  # type: ignore[no-any-return]

    def losses(self, table: Tensor) -> Iterator[Tensor]:
        """Add up to the mean over the learnt tokens. Only what is before them needs logits, and none begins a piece."""
        for part in table.split(self.plan.together):  # type: ignore[no-untyped-call]
            rows, at = part[:, 1].nonzero(as_tuple=True)
            logits = linear(self.hidden(part)[rows, at - 1], self.head)
            yield cross_entropy(logits.float(), part[rows, 0, at].long(), reduction="sum") / table[:, 1].sum()

    def step(self, table: Tensor, rate: float) -> tuple[float, float]:
        """The loss, and the norm of its gradient."""
        total = torch.zeros((), device=table.device)
        for loss in self.losses(table):
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item(), norm.item()

    def judged(self, table: Tensor) -> float:
        """The loss of rows that nothing is learnt from. With gradients, which nobody uses: without them the layers were
        compiled once more."""
        return sum(loss.item() for loss in self.losses(table))

    def save(self) -> Path:
        folder = self.plan.out / "last"
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.trained.items()}
        save_file(weights, folder / base.WEIGHTS)
        (folder / base.CONFIG).write_text(json.dumps({"alpha": self.plan.alpha, "heads": self.heads}))
        return folder


def batches(rows: Tensor, count: int) -> Iterator[Tensor]:
    """Epoch after epoch, each in an order of its own. What is left over at the end of one is left out."""
    if len(rows) < count:
        raise ValueError(f"{len(rows)} rows are too few for steps of {count}")
    while True:
        order = torch.randperm(len(rows)).to(rows.device)
        for at in range(0, len(rows) - count + 1, count):
            yield rows[order[at : at + count]]


def ready(plan: Plan, rows: Tensor) -> Trainer:
    """In the quickest way that works on this machine: what the compilers can do differs from one to the next."""
    ways = dict.fromkeys([(plan.attention, plan.compiled), (SAFE, plan.compiled), (SAFE, False)])
    for attention, compiled in ways:
        trainer = Trainer(replace(plan, attention=attention, compiled=compiled), rows.shape[2])
        try:
            trainer.step(rows[: plan.batch], 0.0)
        except Exception as error:
            print(f"{attention}, compiled={compiled}: {type(error).__name__}: {str(error)[:500]}", flush=True)
            torch._dynamo.reset()
        else:
            return trainer
    raise RuntimeError("no way to compute works on this machine")


def run(plan: Plan) -> Iterator[dict[str, Any]]:
    """Trains, and yields a line for each step. The folder `last` gets what is learnt, each minute and at the end."""
    begun = saved = time.monotonic()
    torch.manual_seed(0)
    (plan.out / "plan.json").write_text(json.dumps(asdict(plan), default=str, indent=1))
    rows = torch.from_numpy(read(plan.rows).table()).to(DEVICE)
    judged = torch.from_numpy(read(plan.held_out).table()).to(DEVICE) if plan.held_out else rows[:0]
    judged = judged[: len(judged) // plan.together * plan.together]  # another shape takes another compilation
    trainer = ready(plan, rows)
    average, told = math.nan, 0.0
    for step, table in enumerate(batches(rows, plan.batch), 1):
        now = time.monotonic()
        done = (step - 1) / plan.steps if plan.steps else (now - begun) / 60 / plan.minutes
        if done >= 1:
            break
        rate = plan.rate * min(1.0, step / WARM_UP) * (1 + math.cos(math.pi * done)) / 2
        loss, norm = trainer.step(table, rate)
        if not math.isfinite(loss):
            raise ArithmeticError(f"the loss of step {step} is {loss}")
        average = loss if math.isnan(average) else 0.98 * average + 0.02 * loss
        tokens = step * table[:, 0].numel()
        numbers = {"seconds": now - begun, "loss": loss, "average": average, "norm": norm, "thousandths": 1000 * rate}
        line = {"step": step, "tokens": tokens, **{name: round(number, 4) for name, number in numbers.items()}}
        if len(judged) and now > told:
            line["held_out"] = round(trainer.judged(judged), 4)
            told = now + max(TOLD_EVERY, 20 * (time.monotonic() - now))
        if now - saved > SAVED_EVERY:
            trainer.save()
            saved = now
        yield line
    trainer.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, argument_default=argparse.SUPPRESS)  # else as `Plan` has it
    parser.add_argument("--base", type=Path, required=True, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--rows", type=Path, required=True, help="what `python -m training.rows` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights and the log")
    parser.add_argument("--held-out", type=Path, help="rows whose loss is told every ten seconds")
    parser.add_argument("--start", type=Path, help="folder or GGUF file of an adapter to go on from")
    for name in ("batch", "together", "rank", "alpha"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("minutes", "rate"):
        parser.add_argument(f"--{name}", type=float)
    plan = Plan(**vars(parser.parse_args()))
    plan.out.mkdir(parents=True, exist_ok=True)
    with (plan.out / "log.jsonl").open("a") as log:
        for line in map(json.dumps, run(plan)):
            print(line, file=log, flush=True)
            print(line, flush=True)


if __name__ == "__main__":
    main()
