"""What a step reads of a bundle with experts: counted from its shape."""

from dataclasses import replace
from pathlib import Path

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tools.random_checkpoint import SHAPES
from tools.random_gguf import write_gguf
from tools.step_weights import step_weights

SHAPE = replace(SHAPES["tiny"], experts=8, chosen=2, tied=False, vocab=512)
BYTES = 0.5 + 4 / 32  # of a weight of 4 bits with its share of a float32 scale


def test_bytes_of_a_shape(tmp_path: Path) -> None:
    write_gguf(tmp_path / "random.gguf", SHAPE)
    arguments = CompileArguments(tmp_path / "random.gguf", tmp_path / "bundle", quant=Quant.KEEP)
    compile_bundle(arguments, SilentProgress())
    found = step_weights(tmp_path / "bundle")
    heads = 2 * SHAPE.heads + 2 * SHAPE.kv_heads  # queries and outputs, keys and values
    assert found.expert == 3 * SHAPE.hidden * SHAPE.ffn * BYTES
    attention = SHAPE.layers * heads * SHAPE.head_dim * SHAPE.hidden
    assert found.matrices == (attention + SHAPE.vocab * SHAPE.hidden) * BYTES
    assert found.read(steps=3, experts=5) == 3 * found.matrices + 5 * found.expert
