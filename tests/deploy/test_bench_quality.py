"""Quantised checkpoints beside each other: bars, tables, the drawing, how bits are counted. Nothing is compiled."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from engine.compile.random_checkpoint import SHAPES, write_checkpoint
from engine.compile.source import FolderSource
from engine.models.family import read_network

DEPLOY = Path(__file__).parents[2] / "deploy"
MODULES = ("peers_setup", "quality_report", "quality_texts", "quality_folder", "quality_rivals", "quality_steps")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    from importlib import import_module

    sys.path.insert(0, str(DEPLOY))
    yield {name: import_module(name) for name in MODULES}
    sys.path.remove(str(DEPLOY))


@pytest.fixture(scope="module")
def report(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["quality_report"]


def row(report: ModuleType, place: tuple[str, str, str], kl: float, top1: float, loss: float) -> object:
    figures = [report.Figure(value, 0.9 * value, 1.1 * value) for value in (kl, top1, loss)]
    return report.QualityRow(*place, 4.5, 10.0, 4088, *figures)


def test_bars_hold_at_the_bar_and_not_above_it(report: ModuleType) -> None:
    rows = [
        row(report, ("demo", "w4", "fast"), 0.4, 0.8, 0.1),
        row(report, ("demo", "w4", "good"), 0.1, 0.9, 0.04),
        row(report, ("demo", "w4", "best"), 0.11, 0.85, 0.02),
    ]
    found = report.bars(rows, report.Asked(frozenset(), {}, {}))
    assert [(bar.way, bar.name, round(bar.ratio, 6), bar.holds) for bar in found] == [
        ("good", "KL / nearest's", 0.25, True),
        ("good", "disagreements / nearest's", 0.5, True),
        ("best", "KL / nearest's", 0.275, False),
        ("best", "disagreements / nearest's", 0.75, False),
    ]


def test_large_checkpoints_have_a_bar_for_perplexity(report: ModuleType) -> None:
    rows = [row(report, ("e", "w4", "fast"), 0.4, 0.8, 0.1), row(report, ("e", "w4", "good"), 0.1, 0.9, 0.04)]
    found = report.bars(rows, report.Asked(frozenset({"e"}), {}, {}))
    assert [(bar.name, bar.holds) for bar in found][2:] == [("perplexity loss / nearest's", False)]


def test_a_loss_that_is_none_has_no_ratio(report: ModuleType) -> None:
    rows = [row(report, ("e", "w4", "fast"), 0.4, 0.8, -0.1), row(report, ("e", "w4", "good"), 0.1, 0.9, 0.04)]
    loss = report.bars(rows, report.Asked(frozenset({"e"}), {}, {}))[2]
    assert (loss.ratio, loss.holds) == (None, None)
    assert "| perplexity loss / nearest's | - | 0.35 |  |" in report.bar_table([loss])


def test_outliers_are_compared_with_the_same_form_and_way_without(report: ModuleType) -> None:
    rows = [
        row(report, ("demo", "w4", "good"), 0.1, 0.9, 0.1),
        row(report, ("demo", "int4 32", "good"), 1.0, 0.9, 1.0),
        row(report, ("demo with outliers", "w4", "good"), 0.11, 0.9, 0.13),
    ]
    found = report.bars(rows, report.Asked(frozenset(), {"demo with outliers": "demo"}, {}))
    assert [(bar.name, bar.holds) for bar in found] == [
        ("KL / without outliers", True),
        ("perplexity loss / without outliers", False),
    ]


def test_rivals_of_as_many_bits_of_the_same_checkpoint(report: ModuleType) -> None:
    rows = [
        row(report, ("demo", "w4", "good"), 0.1, 0.9, 0.1),
        row(report, ("demo", "Q4_0", "llama.cpp"), 0.2, 0.9, 0.1),
        row(report, ("demo", "Q8_0", "llama.cpp"), 0.01, 0.9, 0.1),
        row(report, ("english", "Q4_0", "llama.cpp"), 0.01, 0.9, 0.1),
    ]
    (found,) = report.bars(rows, report.Asked(frozenset(), {}, {"w4": ("Q4_0",)}))
    assert (found.name, found.ratio, found.holds) == ("KL / llama.cpp Q4_0", 0.5, True)


def test_tables_and_drawing_have_every_row(report: ModuleType) -> None:
    rows = [row(report, ("demo", "w4", way), kl, 0.9, 0.1) for way, kl in (("fast", 0.4), ("good", 0.1))]
    assert "| demo | w4 | good | 4.50 | 0.1 (0.09..0.11) | 90.0 (81.0..99.0) | 10.00 (9.00..11.00) | 10 |" in (
        report.table(rows)
    )
    drawn = ElementTree.fromstring(report.drawing(rows, "a caption"))
    bars = [each for each in drawn if each.tag.endswith("rect")][1:]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert len(widths) == 2
    assert widths[0] > widths[1] > 0


def test_bars_of_published_models(report: ModuleType) -> None:
    losses = {("w8a16", "good"): 0.012, ("w4", "good"): 0.1, ("w4a16", "best"): 0.05}
    theirs = {("Q4_0", "llama.cpp"): 0.4, ("Q4_K_M", "llama.cpp"): 0.06}
    rows = [row(report, ("m", *place), kl, 0.9, 0.1) for place, kl in (losses | theirs).items()]
    found = report.bars(rows, report.Asked(frozenset(), {}, {}, frozenset({"m"})))
    assert [(bar.name, bar.holds) for bar in found] == [
        ("KL, in nats", False),
        ("KL / Q4_0's", True),
        ("KL / Q4_K_M's", True),
    ]


def test_what_eval_writes_is_read(report: ModuleType) -> None:
    figure = {"value": 0.5, "low": 0.4, "high": 0.6}
    written = {"tokens": 12, "kl": figure, "top1": figure, "perplexity_loss": figure}
    found = report.QualityRow.of(("demo", "w4", "fast"), 4.5, 3.0, written)
    assert (found.tokens, found.kl.high, found.loss.low) == (12, 0.6, 0.4)


def test_bits_are_of_layers_and_head(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPES["tiny"])
    spec = read_network(FolderSource(tmp_path).config).spec
    folder = modules["quality_folder"]
    width, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    layers = spec.layers * spec.hidden * (2 * width + 2 * keys + 3 * spec.ffn)
    head = spec.vocab * spec.hidden
    found = folder.bits_of(tmp_path, folder.Form((), 32, 4.0, 8.0))
    assert found == pytest.approx((4 * layers + 8 * head) / (layers + head))


def test_bits_of_a_gguf_leave_the_embedding_out(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "qwen3")
    kinds = gguf.GGMLQuantizationType
    writer.add_tensor("token_embd.weight", np.ones((64, 32), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    packed = gguf.quants.quantize(np.ones((32, 64), np.float32), kinds.Q4_0)
    writer.add_tensor("blk.0.ffn_down.weight", packed, raw_dtype=kinds.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert modules["quality_rivals"].gguf_bits(tmp_path / "x.gguf") == 4.5


@pytest.fixture
def subject(modules: dict[str, ModuleType], tmp_path: Path) -> Any:
    for name in ("held-out.txt", "calibration.txt", "model.safetensors"):
        (tmp_path / name).write_text(name)
    return modules["quality_folder"].Subject("demo", tmp_path, tmp_path / "held-out.txt", tmp_path / "calibration.txt")


def kept_ways(modules: dict[str, ModuleType], subject: Any, asked: Sequence[tuple[str, str]], check: Any = None) -> str:
    """Which of (form, made_by) was measured, M, and which was there, '-'."""
    steps = modules["quality_steps"].QualitySteps(Console(quiet=True))
    folder = modules["quality_folder"].QualityFolder(subject.folder / "q", steps, 4096, check)
    measured: list[str] = []

    def measure(form: str) -> object:
        measured.append(form)
        return row(modules["quality_report"], ("demo", form, "good"), 0.1, 0.9, 0.1)

    found = ""
    for form, made_by in asked:
        before = len(measured)
        kept = folder.kept(subject, ("demo", form, "good"), made_by, partial(measure, form))
        assert (kept.form, kept.kl.value) == (form, 0.1)
        found += "M" if len(measured) > before else "-"
    return found


def test_rows_are_kept_until_what_made_them_changes(modules: dict[str, ModuleType], subject: Any) -> None:
    asked = [("w4", "one"), ("w4", "one"), ("w4", "other"), ("int4 32", "one"), ("w4", "one")]
    assert kept_ways(modules, subject, asked) == "M-MM-"


@pytest.mark.parametrize("changed", ["held-out.txt", "calibration.txt", "model.safetensors"])
def test_rows_are_of_one_checkpoint_and_its_texts(modules: dict[str, ModuleType], subject: Any, changed: str) -> None:
    assert kept_ways(modules, subject, [("w4", "one")]) == "M"
    (subject.folder / changed).write_text("other")
    assert kept_ways(modules, subject, [("w4", "one")]) == "M"


def test_rows_of_floats_are_measured_again_for_a_check(modules: dict[str, ModuleType], subject: Any) -> None:
    asked = [("w4", "one"), ("int4 32", "one"), ("Q4_0", "one")]
    assert kept_ways(modules, subject, asked) == "MMM"
    assert kept_ways(modules, subject, asked, check=object()) == "M-M"  # int4 is served, not floats


def test_what_made_a_row_of_other_software(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    rivals = modules["quality_rivals"]
    found = {name: rivals.made_by(rival) for name, rival in rivals.RIVALS.items()}
    assert len(set(found.values())) == len(found)
    monkeypatch.setattr(rivals, "VERSION", "0.0.1")
    monkeypatch.setattr(rivals, "AUTO_ROUND", "auto-round==0.0.1")
    assert all(rivals.made_by(rival) != found[name] for name, rival in rivals.RIVALS.items())


def test_the_two_texts_of_the_embedded_model_differ(modules: dict[str, ModuleType]) -> None:
    texts = modules["quality_texts"]
    held_out, calibration = texts.held_out_text(), texts.calibration_text()
    assert len(held_out) > 10_000
    assert len(calibration) > 50_000
    asked = {line for line in held_out.split("<|im_start|>") if line.startswith("user") and "capital" in line}
    assert asked
    assert not asked & set(calibration.split("<|im_start|>"))
