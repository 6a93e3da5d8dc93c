"""Encoders of images at their published sizes beside transformers: `python -m tools.images [--folder build/images]`.

Weights are random and text models have four layers: what is compared is the rows of an image and the seconds they
take, both in float32 with the same threads, in turns. Needs an installed `hexserve[dev]` and 8 GB. Ends with 1 when
rows differ.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from tokenizers import AddedToken
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from engine.bundle.manifest import load_manifest
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.request import PromptImage
from engine.runtime.sessions import cpu_provider
from engine.runtime.vision import VisionGraph
from tools.random_checkpoint import CHAT_TEMPLATE, byte_tokenizer

Floats = NDArray[np.float32]
MOST = 1e-4  # of the largest number of the rows
ENCODERS = json.loads(Path(__file__).with_name("encoders.json").read_text(encoding="utf-8"))  # by class of transformers
FRAMES = [f"<{name}>" for name in ("fake_token_around_image", "global-img", "row_1_col_1", "img", "/img")]
FRAMES += ["<start_of_image>", "<end_of_image>", "<|vision_start|>", "<|vision_end|>"]
TEXT = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 400}
TEXT |= {"intermediate_size": 1024, "eos_token_id": 258}
NOBODY: dict[str, Any] = {"bos_token_id": None, "pad_token_id": None}
COLOURS: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def main() -> int:
    """Write, compile, measure and print each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/images"))
    parser.add_argument("--classes", default=",".join(ENCODERS), help="of transformers")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each program")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if unknown := set(options.classes.split(",")) - ENCODERS.keys():
        parser.error(f"--classes {min(unknown)}: it is one of {', '.join(ENCODERS)}")
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    print("| encoder of | rows | largest difference | seconds an image | transformers | ratio |\n" + "|---" * 6 + "|")
    return int(max(measured(family, options) for family in options.classes.split(",")) > MOST)


def measured(family: str, options: argparse.Namespace) -> float:
    """Print a line; the largest difference of two numbers, as a share of the largest number."""
    said, folder = ENCODERS[family], options.folder / family
    model, bundle = written(family, folder / "source"), folder / "bundle"
    if not bundle.exists():
        compile_bundle(CompileArguments(folder / "source", bundle, quant=Quant.FP32), SilentProgress())
    small = np.random.default_rng(1).integers(0, 256, (9, 9, 3)).astype(np.uint8)
    picture = Image.fromarray(small).resize((said["side"], said["side"]), Image.Resampling.BICUBIC)
    ours, theirs, times = reader(bundle, picture, options.threads), judge(family, model, picture), []
    for _ in range(options.rounds + 1):  # the first warms both up
        start = time.perf_counter()
        found = ours()
        middle = time.perf_counter()
        wanted = theirs()
        times.append((middle - start, time.perf_counter() - middle))
    difference = float(np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())
    mine, other = (median(side) for side in zip(*times[1:], strict=True))
    ratio = median(own / baseline for own, baseline in times[1:])
    print(f"| {said['name']} | {len(wanted)} | {difference:.1e} | {mine:.2f} | {other:.2f} | {ratio:.2f} |", flush=True)
    return difference


def reader(bundle: Path, picture: Image.Image, threads: int) -> Callable[[], Floats]:
    """What the worker does for an image."""
    manifest = load_manifest(bundle)
    assert manifest.vision is not None
    graph, native = VisionGraph(bundle, manifest, cpu_provider(threads)), manifest.vision.native
    cells = picture.width // native.cell if native is not None else 0
    pixels = np.asarray(picture).transpose(2, 0, 1).tobytes()
    tile = PromptImage(0, cells**2 or manifest.vision.tokens, b"", pixels, grid=(cells, cells))
    return lambda: np.frombuffer(graph.rows(tile), np.float32)


def judge(family: str, model: Any, picture: Image.Image) -> Callable[[], Floats]:
    """The same by transformers: rows, and beside each what it adds in the first layers of the text."""
    if family.startswith("Qwen"):
        processor = Qwen2VLImageProcessorPil(**ENCODERS[family]["processor"], **COLOURS)
        given = dict(processor([picture], return_tensors="pt"))
    else:
        values = (torch.tensor(np.asarray(picture)).permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
        given = {"pixel_values": values[None] if family == "SmolVLM" else values}

    def rows() -> Floats:
        with torch.inference_mode():
            found = model.get_image_features(**given)
        deep = [each[0] for each in getattr(found, "deepstack_features", None) or ()]
        joined: Floats = torch.cat([found.pooler_output[0], *deep], dim=-1).numpy()
        return joined

    return rows


def written(family: str, folder: Path) -> Any:
    """The model of transformers, and its folder; its weights keep numbers near 1."""
    said, tokenizer = ENCODERS[family], byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (said["image"], *FRAMES)])
    names = {"boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>"}
    names |= dict.fromkeys(("image_token_id", "image_token_index"), said["image"])
    ids = {name: tokenizer.token_to_id(token) for name, token in names.items()}
    given = {**said["config"], "text_config": TEXT | NOBODY | said["config"]["text_config"]}
    config = getattr(transformers, f"{family}Config")(**given, **ids)
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
    if not folder.exists():
        model.save_pretrained(folder)
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {"chat_template": CHAT_TEMPLATE + said["image"], "eos_token": "<|im_end|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "preprocessor_config.json").write_text(json.dumps(said["processor"] | COLOURS))
    return model


if __name__ == "__main__":
    sys.exit(main())
