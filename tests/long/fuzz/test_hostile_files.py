"""Damaged input from disk: each case ends in one sentence or works, within 10 s and 1 GiB; its seed names it."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gguf.constants import GGMLQuantizationType

from engine.compile.arguments import CompileArguments, KvType, Layout
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.processes import child_environment
from server.settings import options
from tests.engine.compile.sources.gguf.gguf_files import write_gguf
from tests.engine.compile.sources.gguf.projector_files import write_pair
from tests.ggml_whisper import write_tiny_ggml
from tests.hybrid import make_hybrid
from tests.long.fuzz.exercises import DESCRIPTIONS, EXERCISES
from tests.tiny_encoder import write_encoder, write_pooling
from tools.random_checkpoint import SHAPES, Qwen3Shape, write_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, limits its memory and makes pipes")

CASES = 120


@pytest.fixture(scope="module")
def bases() -> Iterator[Path]:
    """A sound input of each kind, and room for cases, where every user may go."""
    with tempfile.TemporaryDirectory(prefix="hexserve-fuzz-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_checkpoint(folder / "checkpoint", SHAPES["tiny"])
        (folder / "gguf").mkdir()
        write_gguf(folder / "checkpoint", folder / "gguf" / "model.gguf", some_kind)
        for kind, images in (("idefics3", "images"), ("gemma3", "images of gemma3")):
            (folder / images).mkdir()
            write_pair(folder / kind, folder / images, kind)
        (folder / "whisper").mkdir()
        write_tiny_ggml(folder / "whisper" / "ggml-tiny.bin")
        make_hybrid(folder / "hybrid", num_hidden_layers=2, full_attention_interval=2)
        (folder / "hybrid gguf").mkdir()
        write_gguf(folder / "hybrid", folder / "hybrid gguf" / "model.gguf")
        kinds = (("bundle", Layout.POOL, None), ("segments", Layout.SEGMENTS, KvType.INT8))
        for made, layout, kv in (*kinds, ("float segments", Layout.SEGMENTS, KvType.FLOAT32)):
            arguments = CompileArguments(folder / "checkpoint", folder / made, parity_tokens=4, layout=layout, kv=kv)
            compile_bundle(arguments, SilentProgress())
        fused = CompileArguments(
            folder / "checkpoint", folder / "fused", parity_tokens=4, layout=Layout.FUSED, rows=(8,), same_past=(33,)
        )
        compile_bundle(fused, SilentProgress())
        write_encoder(folder / "encoder checkpoint", "NomicBert")
        write_pooling(folder / "encoder checkpoint", "mean_tokens", max_tokens=40, query="Find: ")
        write_encoder(folder / "pairs", "Bert", "ForSequenceClassification", num_labels=1)
        pairs = CompileArguments(folder / "pairs", folder / "encoder", parity_tokens=4, rows=(8, 16))
        compile_bundle(pairs, SilentProgress())
        (folder / "consistent encoder").symlink_to(folder / "encoder")
        (folder / "consistent fused").symlink_to(folder / "fused")
        (folder / "consistent bundle").symlink_to(folder / "bundle")
        (folder / "consistent segments").symlink_to(folder / "segments")
        write_genie(folder)
        (folder / "settings").mkdir()
        lines = [f"{option.key} = {json.dumps(option.default)}" for option in options() if option.default != ""]
        (folder / "settings" / "settings.toml").write_text("\n".join(lines))
        (folder / "keys").mkdir()
        keys = ["# who may come", "anna:0123456789abcdef", f"ben:sha256:{'0a' * 32}", "barekeybarekey"]
        (folder / "keys" / "keys").write_text("\n".join(keys))
        (folder / "template").mkdir()
        shutil.copy(folder / "bundle" / "chat_template.jinja", folder / "template")
        yield folder


def some_kind(name: str) -> GGMLQuantizationType:
    """Blocks that are kept, and blocks that are not."""
    kinds = {"attn": GGMLQuantizationType.Q4_0, "ffn": GGMLQuantizationType.Q8_0, "embd": GGMLQuantizationType.Q5_0}
    return next(kind for part, kind in kinds.items() if part in name)


def write_genie(folder: Path) -> None:
    """A Genie folder with what its binaries would say of themselves beside them."""
    from tests.genie.generator import Recipe, generate

    shape = Qwen3Shape(layers=3, hidden=64, heads=4, kv_heads=2, head_dim=32, ffn=96, vocab=384, max_position=512)
    write_checkpoint(folder / "genie-source", shape)
    made = generate(folder / "genie-source", folder / "genie", Recipe(parts=3))
    (folder / "genie" / DESCRIPTIONS).write_bytes(msgspec.json.encode(made.infos))


@pytest.fixture(scope="module")
def ends(bases: Path) -> Iterator[Callable[[str, range], list[dict[str, Any]]]]:
    """ends(kind, seeds): how each case ended."""
    command = [sys.executable, "-m", "tests.long.fuzz.warm"]
    root = Path(__file__).parents[3]
    (bases / "work").mkdir()
    (bases / "work").chmod(0o755)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), cwd=root, text=True
    ) as warm:
        assert warm.stdin is not None
        assert warm.stdout is not None

        def run(kind: str, seeds: range) -> list[dict[str, Any]]:
            job = {"kind": kind, "base": str(bases / kind), "work": str(bases / "work"), "seeds": list(seeds)}
            warm.stdin.write(json.dumps(job) + "\n")
            warm.stdin.flush()
            return [json.loads(warm.stdout.readline()) for _ in seeds]

        yield run
        warm.stdin.close()


def check(kind: str, ended: list[dict[str, Any]]) -> None:
    broken = [case for case in ended if case["end"] == "broken"]
    shown = "\n\n".join(f"{kind} seed {case['seed']} ({case['damage']}): {case['text']}" for case in broken[:5])
    assert not broken, f"{len(broken)} of {len(ended)} cases\n{shown}"
    # Where nothing is refused the damage does not reach what is read.
    counts = Counter(case["end"] for case in ended)
    assert counts["refused"] >= len(ended) // 4, counts


@pytest.mark.parametrize("kind", EXERCISES)
def test_damaged_input_is_refused_in_one_sentence_or_works(
    kind: str, ends: Callable[[str, range], list[dict[str, Any]]]
) -> None:
    check(kind, ends(kind, range(CASES)))
