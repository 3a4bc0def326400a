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
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention
from transformers import AttentionInterface

from training import base, packed
from training.packed import Packed

WARM_UP = 40  # steps
SAVED_EVERY = 60.0  # seconds
TOLD_EVERY = 10.0  # seconds between two losses of the held-out rows


@dataclass(frozen=True, slots=True)
class Plan:
    base: Path
    out: Path
    rows: Path
    held_out: Path | None = None
    minutes: float = 5.0  # in all, with what is loaded and compiled; the rate falls to zero in this time
    steps: int | None = None  # instead of the minutes
    batch: int = 32  # rows of a step
    together: int = 32  # rows that are computed at once: as many as memory holds
    rate: float = 1e-3
    rank: int = 64
    alpha: int = 64
    seed: int = 0
    start: Path | None = None  # a folder to go on from, with the optimizer anew
    device: str = "cpu"
    attention: str = "products"
    compiled: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of rows x length. `first`, `root` and `stem` are what `Packed.seen` says."""

    ids: Tensor
    learnt: Tensor
    first: Tensor
    root: Tensor
    stem: Tensor

    def __getitem__(self, rows: Any) -> Batch:
        return Batch(self.ids[rows], self.learnt[rows], self.first[rows], self.root[rows], self.stem[rows])

    def positions(self) -> Tensor:
        """A branch has the positions that it would have alone."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) - self.first + self.stem - self.root

    def dense(self) -> Tensor:
        """rows x 1 x length x length: 0 where a token may look, else the lowest number."""
        at = torch.arange(self.ids.shape[1], device=self.ids.device)
        first, root, stem = (each[:, :, None] for each in (self.first, self.root, self.stem))
        seen = (at[None, :, None] >= at) & ((at >= first) | ((at >= root) & (at < stem)))
        mask = torch.zeros(seen.shape, dtype=torch.bfloat16, device=seen.device)
        return mask.masked_fill_(~seen, torch.finfo(torch.bfloat16).min)[:, None]


def moved(rows: Packed, device: str) -> Batch:
    """All rows onto the device: a few bytes a token."""
    arrays = [torch.from_numpy(array) for array in (rows.ids.astype("int32"), rows.learnt, *rows.seen())]
    return Batch(*(array.to(device) for array in arrays))


class Blocks:
    """The mask of flex attention. Its places are the same tensors for all batches: the compiler sees one mask."""

    def __init__(self, shape: tuple[int, ...], device: str) -> None:
        self.shape, self.device = shape, device
        first, root, stem = self.places = [torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(3)]

        def seen(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = key >= first[row, query]
            return (query >= key) & (own | ((key >= root[row, query]) & (key < stem[row, query])))

        self.seen = seen

    def of(self, batch: Batch) -> BlockMask:
        for place, value in zip(self.places, (batch.first, batch.root, batch.stem), strict=True):
            place.copy_(value)
        rows, length = self.shape
        return create_block_mask(self.seen, rows, None, length, length, self.device)


def products(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    """Plain products of matrices: on a CPU with AMX their gradients take a third of the time that torch's own
    attention takes. The query heads of one key head are rows of one product."""
    rows, heads, length, size = query.shape
    groups = key.shape[1]
    together = query.reshape(rows * groups, -1, size) * options["scaling"]
    scores = torch.bmm(together, key.reshape(rows * groups, length, size).transpose(1, 2))
    seen = scores.view(rows, groups, heads // groups, length, length) + mask[:, :, None]
    shares = torch.softmax(seen, -1).view(rows * groups, -1, length)
    found = torch.bmm(shares, value.reshape(rows * groups, length, size)).view(rows, heads, length, size)
    return found.transpose(1, 2).contiguous(), None


def flex(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, **options: Any
) -> tuple[Tensor, None]:
    """Passes over the blocks that no token of a tree sees."""
    found = flex_attention(query, key, value, block_mask=mask, scale=options["scaling"], enable_gqa=True)
    return found.transpose(1, 2).contiguous(), None


def sdpa(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any) -> tuple[Tensor, None]:
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    found = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=options["scaling"])
    return found.transpose(1, 2).contiguous(), None


ATTENTIONS: dict[str, Callable[..., tuple[Tensor, None]]] = {"products": products, "flex": flex, "sdpa": sdpa}


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
        torch.manual_seed(plan.seed)
        torch.set_float32_matmul_precision("high")
        self.plan = plan
        whole = base.model(plan.base, torch.float32).requires_grad_(False)
        self.heads = {"q_proj": whole.config.num_attention_heads, "k_proj": whole.config.num_key_value_heads}
        self.model, self.head = whole.model, whole.lm_head.weight.bfloat16().to(plan.device)
        for layer in self.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name, child in list(part.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(part, name, Adapted(child, plan.rank, plan.alpha / plan.rank))
        self.model.to(plan.device)
        for part in self.model.modules():
            if not any(True for _ in part.children()) and not isinstance(part, Adapted):
                part.bfloat16()
        self.trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        if plan.start is not None:
            self.model.load_state_dict(load_file(plan.start / base.WEIGHTS), strict=False)
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), plan.rate, (0.9, 0.98), weight_decay=0.0, fused=plan.device == "cuda"
        )
        AttentionInterface.register(f"own {plan.attention}", ATTENTIONS[plan.attention])
        self.model.config._attn_implementation = f"own {plan.attention}"
        self.blocks = Blocks((plan.together, length), plan.device) if plan.attention == "flex" else None
        if plan.compiled:
            for layer in self.model.layers:
                layer.compile(dynamic=False)  # one compilation serves all

    def hidden(self, batch: Batch) -> Tensor:
        """rows x length x width, after the last layer."""
        hidden = self.model.embed_tokens(batch.ids)
        angles = self.model.rotary_emb(hidden, batch.positions())
        mask = self.blocks.of(batch) if self.blocks else batch.dense()
        for layer in self.model.layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=angles, use_cache=False)
        return self.model.norm(hidden)  # type: ignore[no-any-return]

    def loss(self, batch: Batch) -> Tensor:
        """The sum over the learnt tokens. Only what comes before them needs logits. No tree begins with a learnt token,
        and no branch."""
        rows, at = batch.learnt.nonzero(as_tuple=True)
        logits = linear(self.hidden(batch)[rows, at - 1], self.head)
        return cross_entropy(logits.float(), batch.ids[rows, at].long(), reduction="sum")

    def step(self, batch: Batch, rate: float) -> tuple[float, float]:
        """The mean loss, and the norm of its gradient."""
        learnt, total = int(batch.learnt.sum()), 0.0
        for at in range(0, len(batch.ids), self.plan.together):
            loss = self.loss(batch[at : at + self.plan.together]) / learnt
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total, float(norm)

    def judged(self, rows: Batch) -> float:
        """The mean loss of rows that nothing is learnt from. With gradients, which nobody uses: without them the layers
        were compiled once more."""
        parts = [rows[at : at + self.plan.together] for at in range(0, len(rows.ids), self.plan.together)]
        return sum(self.loss(part).item() for part in parts) / int(rows.learnt.sum())

    def save(self) -> Path:
        folder = self.plan.out / "last"
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.trained.items()}
        save_file(weights, folder / base.WEIGHTS)
        (folder / base.CONFIG).write_text(json.dumps({"alpha": self.plan.alpha, "heads": self.heads}))
        return folder


def batches(rows: Batch, count: int, seed: int) -> Iterator[Batch]:
    """Epoch after epoch, each in an order of its own. What is left over at the end of one is left out."""
    if len(rows.ids) < count:
        raise ValueError(f"{len(rows.ids)} rows are too few for steps of {count}")
    order = torch.Generator().manual_seed(seed)
    while True:
        shuffled = torch.randperm(len(rows.ids), generator=order).to(rows.ids.device)
        for at in range(0, len(shuffled) - count + 1, count):
            yield rows[shuffled[at : at + count]]


def ready(plan: Plan, rows: Batch) -> Trainer:
    """In the quickest way that works on this machine: what the compilers can do differs from one to the next."""
    ways = dict.fromkeys([(plan.attention, plan.compiled), ("sdpa", plan.compiled), ("sdpa", False)])
    for number, (attention, compiled) in enumerate(ways):
        torch._dynamo.reset()
        trainer = Trainer(replace(plan, attention=attention, compiled=compiled), rows.ids.shape[1])
        try:
            trainer.loss(rows[: plan.together]).backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            if number == len(ways) - 1:
                raise
            print(f"{attention}, compiled={compiled}: {type(error).__name__}: {str(error)[:500]}", flush=True)
        else:
            trainer.optimizer.zero_grad()
            return trainer
    raise AssertionError("the last way returns or raises")


def run(plan: Plan) -> Iterator[dict[str, Any]]:
    """Trains, and yields a line for each step. The folder `last` gets what is learnt, each minute and at the end."""
    begun = saved = told = time.monotonic()
    plan.out.mkdir(parents=True, exist_ok=True)
    (plan.out / "plan.json").write_text(json.dumps(asdict(plan), default=str, indent=1))
    rows = moved(packed.read(plan.rows), plan.device)
    judged = moved(packed.read(plan.held_out), plan.device) if plan.held_out else None
    trainer = ready(plan, rows)
    average, tokens, learnt = math.nan, 0, 0
    for step, batch in enumerate(batches(rows, plan.batch, plan.seed), 1):
        now = time.monotonic()
        done = step / (plan.steps + 1) if plan.steps else (now - begun) / 60 / plan.minutes
        if done >= 1:
            break
        rate = plan.rate * min(1.0, step / WARM_UP) * (1 + math.cos(math.pi * done)) / 2
        loss, norm = trainer.step(batch, rate)
        if not math.isfinite(loss):
            raise ArithmeticError(f"the loss of step {step} is {loss}")
        average = loss if math.isnan(average) else 0.98 * average + 0.02 * loss
        tokens += batch.ids.numel()
        learnt += int(batch.learnt.sum())
        line = {
            "step": step,
            "seconds": round(now - begun, 1),
            "loss": round(loss, 4),
            "average": round(average, 4),
            "norm": round(norm, 3),
            "rate": round(rate, 7),
            "epochs": round(tokens / rows.ids.numel(), 2),
            "tokens": tokens,
            "learnt": learnt,
        }
        if judged is not None and (step == 1 or now - told > TOLD_EVERY):
            line["held_out"], told = round(trainer.judged(judged), 4), now
        if now - saved > SAVED_EVERY:
            saved = now
            trainer.save()
        yield line
    trainer.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--rows", type=Path, required=True, help="what `python -m training.rows` wrote")
    parser.add_argument("--held-out", type=Path, help="rows whose loss is told every ten seconds")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights and the log")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--steps", type=int, help="instead of minutes")
    parser.add_argument("--batch", type=int, help="rows of a step: 32 on a GPU, 8 on a processor")
    parser.add_argument("--together", type=int, help="rows computed at once: 32 on a GPU, 2 on a processor")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--start", type=Path, help="folder to go on from")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--attention", choices=tuple(ATTENTIONS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="without a compiler: half as fast")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cuda = args.device == "cuda"
    plan = Plan(
        args.base,
        args.out,
        args.rows,
        args.held_out,
        args.minutes,
        args.steps,
        args.batch or (32 if cuda else 8),
        args.together or min(args.batch or 32, 32 if cuda else 2),
        args.rate,
        args.rank,
        args.rank,
        start=args.start,
        device=args.device,
        attention=args.attention or ("flex" if cuda else "products"),
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
