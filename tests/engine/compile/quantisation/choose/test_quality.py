"""Which quality a compilation gets; what is refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gguf.constants import GGMLQuantizationType

from engine.bundle.manifest import DiffusionSpec
from engine.compile.arguments import CompileArguments, Layout, QualityLevel, Quant, Target
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.choose.form import CodeForm
from engine.compile.quantisation.choose.matrices import kept_matrices
from engine.compile.quantisation.choose.quality import methods_of, resolve_quality
from engine.compile.quantisation.methods.table import method_of
from engine.compile.sources.source import FolderSource, open_source
from engine.errors import CompileError
from engine.models.family import read_network
from engine.models.network import Network
from tests.engine.compile.sources.gguf.gguf_files import write_gguf


class Notes(SilentProgress):
    """Keeps what was noted."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def settled(source: Path, network: Network | None = None, **options: Any) -> tuple[QualityLevel | None, list[str]]:
    opened, notes = open_source(source), Notes()
    arguments = CompileArguments(source, Path("out"), **{"quality": None, **options})
    result = resolve_quality(arguments, opened, network or read_network(opened.config), notes)
    return result.quality, notes.texts


def grown(network: Network) -> Network:
    """The size of 14 B parameters."""
    sizes = {"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 8, "head_dim": 128, "ffn": 17_408, "vocab": 151_936}
    return replace(network, spec=msgspec.structs.replace(network.spec, parameters=14_800_000_000, **sizes))


@pytest.mark.parametrize("quant", ["int4", "w4", "w4a16", "w8a16"])
def test_good_is_the_default_whatever_it_takes(quant: str, tiny_checkpoint: Path) -> None:
    assert settled(tiny_checkpoint, quant=Quant(quant), quality=QualityLevel.BEST)[0] is QualityLevel.BEST
    large = grown(read_network(FolderSource(tiny_checkpoint).config))
    for network in (None, large):
        assert settled(tiny_checkpoint, network, quant=Quant(quant)) == (QualityLevel.GOOD, [])


@pytest.mark.parametrize("quant", ["fp32", "int8", "keep", "fp16"])
def test_methods_with_nothing_to_choose(quant: str, tiny_checkpoint: Path) -> None:
    assert settled(tiny_checkpoint, quant=Quant(quant)) == (QualityLevel.FAST, [])
    assert settled(tiny_checkpoint, quant=Quant(quant), quality=QualityLevel.FAST)[0] is QualityLevel.FAST
    with pytest.raises(CompileError, match=rf"--quality good chooses codes .* not for {quant}"):
        settled(tiny_checkpoint, quant=Quant(quant), quality=QualityLevel.GOOD)


def test_blocks_that_a_file_has_are_kept(tiny_checkpoint: Path, tmp_path: Path) -> None:
    four = write_gguf(tiny_checkpoint, tmp_path / "four.gguf", GGMLQuantizationType.Q4_0)
    eight = write_gguf(tiny_checkpoint, tmp_path / "eight.gguf", GGMLQuantizationType.Q8_0)
    assert settled(four)[0] is QualityLevel.FAST
    assert settled(eight)[0] is QualityLevel.GOOD
    with pytest.raises(CompileError, match="4 bits already"):
        settled(four, quality=QualityLevel.GOOD)
    for options in ({"block": 128}, {"asymmetric": True}, {"quant": Quant.W4A16}):  # these store them otherwise
        assert settled(four, **options)[0] is QualityLevel.GOOD


@pytest.mark.parametrize("last", [False, True])
def test_what_a_mixed_file_has_not_in_4_bits_is_chosen(last: bool, tiny_checkpoint: Path, tmp_path: Path) -> None:
    def kind(name: str) -> GGMLQuantizationType:
        is_four_bit = name.startswith("blk.1." if last else "blk.0.ffn_down")
        return GGMLQuantizationType.Q4_0 if is_four_bit else GGMLQuantizationType.Q8_0

    mixed = write_gguf(tiny_checkpoint, tmp_path / "mixed.gguf", kind)
    assert settled(mixed)[0] is QualityLevel.GOOD
    source = open_source(mixed)
    with source.tensors() as checkpoint:
        kept = kept_matrices(CompileArguments(mixed, tmp_path), checkpoint, read_network(source.config))
    assert len(kept) == (7 if last else 1)
    assert all(name.startswith("model.layers.1." if last else "model.layers.0.mlp.down_proj") for name in kept)


def test_four_bits_that_are_rounded_again_are_chosen(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Q4_1 has a lowest value for each block, which int4 has no place for."""
    four = write_gguf(tiny_checkpoint, tmp_path / "four.gguf", GGMLQuantizationType.Q4_1)
    assert settled(four)[0] is QualityLevel.GOOD
    assert settled(four, quant=Quant.W4)[0] is QualityLevel.FAST  # w4 has


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quant": Quant.INT4}, "read for scales of int8 caches alone: weights are rounded to nearest"),
        ({"quant": Quant.W4A16, "rows": (8,), "context": (64,)}, "read for ranges of activations alone"),
        ({"quant": Quant.INT4, "layout": Layout.POOL}, "not read: weights are rounded to nearest, and nothing else"),
        ({"quant": Quant.W4, "target": Target.X_ELITE}, "not read: weights are rounded to nearest, and nothing else"),
    ],
)
def test_calibration_that_is_read_for_less_is_told_of(
    options: dict[str, Any], told: str, tiny_checkpoint: Path
) -> None:
    text = {"calibration": Path("text.txt")}
    level, notes = settled(tiny_checkpoint, **options, **text, quality=QualityLevel.FAST)
    assert (level, len(notes)) == (QualityLevel.FAST, 1)
    assert notes[0].startswith(f"--calibration is {told}")
    assert settled(tiny_checkpoint, **options, **text) == (QualityLevel.GOOD, [])


def test_models_that_denoise_blocks_and_whole_contexts(tiny_checkpoint: Path) -> None:
    network = read_network(FolderSource(tiny_checkpoint).config)
    blocks = replace(network, details=replace(network.details, diffusion=DiffusionSpec(4, 1)))
    assert settled(tiny_checkpoint, blocks)[0] is QualityLevel.FAST
    assert settled(tiny_checkpoint, whole_context=(32,))[0] is QualityLevel.FAST
    with pytest.raises(CompileError, match=r"--quality good .* denoises blocks"):
        settled(tiny_checkpoint, blocks, quality=QualityLevel.GOOD)
    with pytest.raises(CompileError, match="--whole-context"):
        settled(tiny_checkpoint, whole_context=(32,), quality=QualityLevel.GOOD)


def test_methods_in_words() -> None:
    good = CompileArguments(Path("a"), Path("out"), quality=QualityLevel.GOOD)
    w4a16, w8a16 = replace(good, quant=Quant.W4A16, lora=True), replace(good, quant=Quant.W8A16)
    forms = [form for each in (good, w4a16, w8a16) if (form := CodeForm.of(method_of(each), each)) is not None]
    streams, refined = "targets from the float stream", "refined codes and scales"
    assert methods_of(good, forms[0]) == (
        "balanced heads",
        "channel scales",
        streams,
        "GPTQ",
        "searched scales",
        refined,
    )
    assert methods_of(w4a16, forms[1])[1:] == ("GPTQ", "searched LPBQ multiples", refined, "ranges by error")
    assert methods_of(w8a16, forms[2]) == ("balanced heads", streams, "GPTQ", "ranges by error")
