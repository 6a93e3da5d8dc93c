"""Quantised checkpoints beside each other: bars, tables, how bits are counted. Nothing is compiled."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.compile.check.parity import Interval
from engine.compile.sources.source import FolderSource
from engine.models.family import read_network
from tools.quality import baselines, report
from tools.quality.folder import Form, QualityFolder, Subject, bits_of
from tools.random_checkpoint import SHAPES, write_checkpoint


def row(place: tuple[str, str, str], kl: float, top1: float, loss: float) -> report.QualityRow:
    figures = [Interval(value, 0.9 * value, 1.1 * value) for value in (kl, top1, loss)]
    return report.QualityRow(*place, 4.5, 10.0, 4088, *figures)


def test_bars_hold_at_the_bar_and_not_above_it() -> None:
    rows = [
        row(("demo", "w4", "fast"), 0.4, 0.8, 0.1),
        row(("demo", "w4", "good"), 0.1, 0.9, 0.04),
        row(("demo", "w4", "best"), 0.11, 0.85, 0.02),
    ]
    found = report.bars(rows, frozenset())
    assert [(bar.load, bar.name, round(bar.value or 0, 6), bar.holds) for bar in found] == [
        ("demo w4 good", "KL / nearest's", 0.25, True),
        ("demo w4 good", "disagreements / nearest's", 0.5, True),
        ("demo w4 best", "KL / nearest's", 0.275, False),
        ("demo w4 best", "disagreements / nearest's", 0.75, False),
    ]


def test_a_table_has_every_row() -> None:
    rows = [row(("demo", "w4", way), kl, 0.9, 0.1) for way, kl in (("fast", 0.4), ("good", 0.1))]
    assert "| demo | w4 | good | 4.50 | 0.1 (0.09..0.11) | 90.0 (81.0..99.0) | 10.00 (9.00..11.00) | 10 |" in (
        report.table(rows)
    )


def test_rows_of_the_emulator_have_no_bars() -> None:
    rows = [row(("smollm2", form, "good"), 0.02, 0.9, 0.01) for form in ("w8a16", "w8a16-emulator")]
    assert [(bar.load, bar.holds) for bar in report.bars(rows, frozenset({"smollm2"}))] == [
        ("smollm2 w8a16 good", False)
    ]


def test_bars_of_published_models() -> None:
    losses = {("w8a16", "good"): 0.012, ("w4", "good"): 0.1, ("w4a16", "best"): 0.05}
    theirs = {("Q4_0", "llama.cpp"): 0.4, ("Q4_K_M", "llama.cpp"): 0.06}
    rows = [row(("m", *place), kl, 0.9, 0.1) for place, kl in (losses | theirs).items()]
    found = report.bars(rows, frozenset({"m"}))
    assert [(bar.name, bar.holds) for bar in found] == [
        ("KL, in nats", False),
        ("KL / Q4_0's", True),
        ("KL / Q4_K_M's", True),
    ]


def test_what_eval_writes_is_read() -> None:
    figure = {"value": 0.5, "low": 0.4, "high": 0.6}
    written = {"tokens": 12, "kl": figure, "top1": figure, "perplexity_loss": figure}
    found = report.QualityRow.of(("demo", "w4", "fast"), 4.5, 3.0, written)
    assert (found.tokens, found.kl.high, found.loss.low) == (12, 0.6, 0.4)


def test_bits_are_of_layers_and_head(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPES["tiny"])
    spec = read_network(FolderSource(tmp_path).config).spec
    width, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    layers = spec.layers * spec.hidden * (2 * width + 2 * keys + 3 * spec.ffn)
    head = spec.vocab * spec.hidden
    found = bits_of(tmp_path, Form((), 4.0, 8.0))
    assert found == pytest.approx((4 * layers + 8 * head) / (layers + head))


def test_bits_of_a_gguf_leave_the_embedding_out(tmp_path: Path) -> None:
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
    assert baselines.gguf_bits(tmp_path / "x.gguf") == 4.5


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    for name in ("held-out.txt", "calibration.txt", "model.safetensors"):
        (tmp_path / name).write_text(name)
    return Subject("demo", tmp_path, tmp_path / "held-out.txt", tmp_path / "calibration.txt")


def kept_ways(subject: Subject, asked: Sequence[tuple[str, str]]) -> str:
    """Which of (form, made_by) was measured, M, and which was there, '-'."""
    folder = QualityFolder(subject.folder / "q", pytest.fail, 4096)
    measured: list[str] = []

    def measure(form: str) -> report.QualityRow:
        measured.append(form)
        return row(("demo", form, "good"), 0.1, 0.9, 0.1)

    found = ""
    for form, made_by in asked:
        before = len(measured)
        kept = folder.kept(subject, ("demo", form, "good"), made_by, partial(measure, form))
        assert (kept.form, kept.kl.value) == (form, 0.1)
        found += "M" if len(measured) > before else "-"
    return found


def test_rows_are_kept_until_what_made_them_changes(subject: Subject) -> None:
    asked = [("w4", "one"), ("w4", "one"), ("w4", "other"), ("int4 32", "one"), ("w4", "one")]
    assert kept_ways(subject, asked) == "M-MM-"


@pytest.mark.parametrize("changed", ["held-out.txt", "calibration.txt", "model.safetensors"])
def test_rows_are_of_one_checkpoint_and_its_texts(subject: Subject, changed: str) -> None:
    assert kept_ways(subject, [("w4", "one")]) == "M"
    (subject.folder / changed).write_text("other")
    assert kept_ways(subject, [("w4", "one")]) == "M"


def test_what_made_a_row_of_other_software(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: baselines.made_by(name) for name in baselines.BASELINES}
    assert len(set(found.values())) == len(found)
    monkeypatch.setattr(baselines, "VERSION", "0.0.1")
    assert all(baselines.made_by(name) != found[name] for name in baselines.BASELINES)
