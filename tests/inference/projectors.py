"""Small projectors with random weights for the bundled model, in the kinds that people run.

What they see is of no sense, but every pixel changes it.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import gguf
import numpy as np
from PIL import Image

from inference.picture import Picture, Pixels
from tests.inference.variants import KINDS as KINDS_OF_TOKENS
from tests.inference.variants import TOKENS, fact, write_variant

# gemma3: one size, whose rows attend to each other; idefics3: slices with text between them; pixtral: any size.
Kind: TypeAlias = Literal["gemma3", "idefics3", "pixtral"]
KINDS: tuple[Kind, ...] = ("gemma3", "idefics3", "pixtral")
PATCH, SIDE, LAYERS, WIDTH, HEADS, MERGED = 16, 128, 2, 64, 2, 2


def write_projector(path: Path, kind: Kind, dimensions: int, *, layers: int = LAYERS) -> Path:
    """`dimensions` are those of the model."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", True)
    for name, value in {
        "embedding_length": WIDTH,
        "attention.head_count": HEADS,
        "feed_forward_length": 2 * WIDTH,
        "block_count": layers,
        "projection_dim": dimensions,
        "image_size": SIDE,
        "patch_size": PATCH,
        "projector.scale_factor": MERGED,
        "spatial_merge_size": MERGED,
        "preproc_image_size": 2 * SIDE,
    }.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])

    def matrix(name: str, *shape: int, size: float = 1.0) -> None:
        scale = size / np.sqrt(np.prod(shape[1:]))
        writer.add_tensor(name, (random.standard_normal(shape) * scale).astype(np.float32))

    def ones(name: str, width: int = WIDTH) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    def zeros(name: str, width: int) -> None:
        writer.add_tensor(name, np.zeros(width, np.float32))

    matrix("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH, size=4.0)
    for layer in range(layers):
        block = f"v.blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            matrix(f"{block}.{part}.weight", WIDTH, WIDTH)
        matrix(f"{block}.ffn_up.weight", 2 * WIDTH, WIDTH)
        matrix(f"{block}.ffn_down.weight", WIDTH, 2 * WIDTH)
        for norm in ("ln1", "ln2"):
            ones(f"{block}.{norm}.weight")
            if kind != "pixtral":
                zeros(f"{block}.{norm}.bias", WIDTH)
    # As large as the embeddings of tokens, so that both count.
    if kind == "pixtral":
        matrix("mm.1.weight", dimensions, WIDTH)
        matrix("mm.2.weight", dimensions, dimensions)
        matrix("v.token_embd.img_break", dimensions)
        ones("v.pre_ln.weight")
        ones("mm.input_norm.weight")
        matrix("mm.patch_merger.weight", WIDTH, MERGED * MERGED * WIDTH)
    else:
        matrix("v.position_embd.weight", (SIDE // PATCH) ** 2, WIDTH)
        ones("v.post_ln.weight")
        zeros("v.post_ln.bias", WIDTH)
    if kind == "gemma3":
        ones("mm.soft_emb_norm.weight")
        matrix("mm.input_projection.weight", WIDTH, dimensions)
    elif kind == "idefics3":
        matrix("mm.model.fc.weight", dimensions, MERGED * MERGED * WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_with_marks(source: Path, target: Path) -> Path:
    """A copy of a model whose last tokens are the marks that idefics3 needs."""
    tokens, kinds = list(fact(source, TOKENS)), list(fact(source, KINDS_OF_TOKENS))
    marks = ["<fake_token_around_image>", "<global-img>"]
    tokens[-len(marks) :], kinds[-len(marks) :] = marks, [gguf.TokenType.CONTROL] * len(marks)
    write_variant(source, target, {TOKENS: tokens, KINDS_OF_TOKENS: kinds})
    return target


def picture(seed: int, width: int = 128, height: int = 128) -> Picture:
    """Random fields of color: noise would look alike to an encoder that averages."""
    random = np.random.default_rng(seed)
    fields = random.integers(0, 256, (4, 4, 3), np.uint8)
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    rgb = fields[rows][:, columns].tobytes()
    seen = Picture.of("image/x-raw", b"%d %d %b" % (width, height, rgb))
    return replace(seen, pixels=Pixels(width, height, rgb))


def png(picture: Picture) -> bytes:
    assert picture.pixels is not None
    file = io.BytesIO()
    size = picture.pixels.width, picture.pixels.height
    Image.frombytes("RGB", size, picture.pixels.rgb).save(file, "PNG")
    return file.getvalue()
