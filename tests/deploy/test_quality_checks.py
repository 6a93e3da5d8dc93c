"""Our scores beside llama.cpp's: what its tool prints and writes, what is compared, when both agree."""

import json
import struct
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.demo.location import demo_folder
from engine.errors import BundleError

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMES = ("quality_checks", "quality_halves", "quality_keys", "quality_llama", "peers_gguf", "peers_setup")
PRINTED_OF_FLOATS = "[8]69.5000,\n0.00.950.988 I Final estimate: PPL = 69.5000 +/- 4.00000\n"
PRINTED = """
====== Perplexity statistics ======
Mean PPL(Q)                   :  70.250000 ±   4.100000
Mean PPL(base)                :  61.500000 ±   4.000000
Cor(ln(PPL(Q)), ln(PPL(base))):  99.90%

====== KL divergence statistics ======
Mean    KLD:   0.009340 ±   0.000210
Maximum KLD:   0.250000

====== Token probability statistics ======
Mean    Δp: -0.012 ± 0.030 %
Same top p: 92.300 ± 0.590 %
"""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(DEPLOY))
    yield {name: import_module(name) for name in NAMES}
    sys.path.remove(str(DEPLOY))


def check(modules: dict[str, ModuleType], llama: tuple[float, ...], own: tuple[float, ...]) -> Any:
    checks = modules["quality_checks"]
    return checks.CrossCheck(2040, checks.Scores(*llama), checks.Scores(*own), 2e-4)


def test_what_the_tool_prints_is_read(modules: dict[str, ModuleType]) -> None:
    checks = modules["quality_checks"]
    found, error = checks.scores_in(PRINTED, checks.perplexity_in(PRINTED_OF_FLOATS))
    values = (found.perplexity, found.float_perplexity, found.kl, found.top1)
    assert values == pytest.approx((70.25, 69.5, 0.00934, 0.923))
    assert error == 0.00021


@pytest.mark.parametrize("lost", ["Mean PPL(Q)", "Mean    KLD", "Same top p"])
def test_output_without_a_figure_is_refused(modules: dict[str, ModuleType], lost: str) -> None:
    with pytest.raises(ValueError, match="printed no statistics"):
        modules["quality_checks"].scores_in(PRINTED.replace(lost, "Something"), 69.5)
    with pytest.raises(ValueError, match="printed no perplexity"):
        modules["quality_checks"].perplexity_in(PRINTED)


@pytest.mark.parametrize(
    ("own", "agrees"),
    [
        ((70.0, 60.0, 0.0100, 0.92), True),
        ((70.1, 60.1, 0.0101, 0.92), True),
        ((70.0, 60.0, 0.0103, 0.92), False),
        ((70.0, 60.0, 0.0097, 0.92), False),
        ((70.2, 60.0, 0.0100, 0.92), False),
        ((70.0, 59.8, 0.0100, 0.92), False),
        ((70.0, 60.0, 0.0, 0.92), False),
    ],
)
def test_both_agree_within_the_bars(modules: dict[str, ModuleType], own: tuple[float, ...], agrees: bool) -> None:
    assert check(modules, (70.0, 60.0, 0.01, 0.92), own).agrees is agrees


def test_bars_and_table_of_a_check(modules: dict[str, ModuleType]) -> None:
    report = import_module("quality_report")
    found = check(modules, (70.0, 60.0, 0.01, 0.92), (70.0, 60.0, 0.011, 0.921))
    figure = report.Figure(0.01, 0.01, 0.01)
    row = report.QualityRow("demo", "Q4_0", "llama.cpp", 4.5, 1.0, 4088, figure, figure, figure, found)
    bars = report.bars([row], report.Asked(frozenset(), {}, {}))
    assert [(bar.name, round(bar.ratio, 6), bar.holds) for bar in bars] == [
        ("KL, by llama-perplexity and here", 1.1, False),
        ("perplexity, by llama-perplexity and here", 1.0, True),
    ]
    table = modules["quality_checks"].check_table([("demo, Q4_0", found)])
    cells = "| demo, Q4_0 | 2040 | 0.01 ± 0.0002 / 0.011 | 70.00 / 70.00 | 60.00 / 60.00 | 92.0 / 92.1 | no |  |"
    assert cells in table
    assert modules["quality_checks"].check_table([]) == ""


def written_logits(path: Path, tokens: np.ndarray[Any, Any], magic: bytes = b"_logits_") -> Path:
    windows, context = tokens.shape
    header = struct.pack("<iii", context, 3072, windows)
    path.write_bytes(magic + header + tokens.astype(np.int32).tobytes() + b"predictions")
    return path


def test_windows_of_the_tool_are_scored_in_their_second_halves(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    tokens = np.arange(1024).reshape(2, 512)
    found = modules["quality_halves"].windows_in(written_logits(tmp_path / "x", tokens))
    assert [window.tokens for window in found] == [tuple(range(512)), tuple(range(512, 1024))]
    assert [(window.targets[0], window.targets[-1], len(window.targets)) for window in found] == [
        (257, 511, 255),
        (769, 1023, 255),
    ]


def test_another_file_is_refused(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    path = written_logits(tmp_path / "x", np.zeros((1, 512)), magic=b"GGUFGGUF")
    with pytest.raises(BundleError, match="not written by llama-perplexity"):
        modules["quality_halves"].windows_in(path)


def test_special_tokens_are_respelled_in_the_text_and_in_the_file(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    import gguf

    peers_gguf, demo = modules["peers_gguf"], demo_folder()
    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    text = peers_gguf.respelled("<|im_start|>user\n<tool_call> é<|im_end|>\n", tokenizer)
    assert text == "\ue001user\n<tool_call> é\ue002\n"
    for has_respelled, spelling, kind in ((True, "\ue002", 4), (False, "<|im_end|>", 3)):
        assert peers_gguf.main(demo, tmp_path / "x.gguf", True, has_respelled) == 0
        fields = gguf.GGUFReader(tmp_path / "x.gguf").fields
        assert fields["tokenizer.ggml.tokens"].contents(2) == spelling
        assert fields["tokenizer.ggml.token_type"].contents(2) == kind
        assert fields["tokenizer.ggml.tokens"].contents(3) == "<tool_call>"


class FakePeers:
    """Writes nothing but names."""

    def __init__(self) -> None:
        self.written: list[tuple[str, ...]] = []

    def llama_perplexity(self) -> Path:
        return Path("llama-perplexity")

    def llama_quantize(self) -> Path:
        return Path("llama-quantize")

    def float_gguf(self, checkpoint: Path, path: Path, *options: str) -> None:
        self.written.append((checkpoint.name, path.name, *options))


def test_the_floats_of_a_file_and_the_file_itself_are_scored(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    llama, peers, ran = modules["quality_llama"], FakePeers(), []
    own = {"tokens": 2040, "perplexity": 70.2, "float_perplexity": 69.5, "kl": 0.0093, "top1": 0.923}

    def run(step: str, command: list[str]) -> str:
        ran.append(command)
        if "--save-all-logits" in command:
            return PRINTED_OF_FLOATS
        return json.dumps(own) if "quality_halves" in command[1] else PRINTED

    (tmp_path / "made.gguf").touch()
    (tmp_path / "made").mkdir()
    (tmp_path / "held-out.txt").write_text("<|im_start|>user", encoding="utf-8")
    checker = llama.LlamaCheck(peers, tmp_path / "check", run, sys.executable, 4096)
    found = [
        checker.of(llama.Checked("x", demo_folder(), tmp_path / "held-out.txt", tmp_path / made, tmp_path, tmp_path))
        for made in ("made.gguf", "made")
    ]
    assert [each.computed is None for each in found] == [False, True]
    assert [(each.tokens, each.own.kl, each.llama.kl) for each in found] == [(2040, 0.0093, 0.00934)] * 2
    assert all(each.llama.float_perplexity == 69.5 and each.agrees for each in found)
    assert (tmp_path / "check" / "base.txt").read_text(encoding="utf-8") == "\ue001user"
    assert peers.written == [("model", "base.gguf", "--respelled"), ("made", "checked.gguf")]
    scored = [command[command.index("-m") + 1] for command in ran if command[0] == "llama-perplexity"]
    assert [Path(each).name for each in scored] == ["base.gguf", "checked.gguf", "made.gguf", "checked.gguf"]
    assert ran[0][ran[0].index("--chunks") + 1] == "8"


def test_a_lost_end_of_the_log_is_asked_for_again(modules: dict[str, ModuleType]) -> None:
    printed = iter(["", PRINTED_OF_FLOATS])
    checker = modules["quality_llama"].LlamaCheck(FakePeers(), Path(), lambda step, command: next(printed), "", 4096)
    assert checker._figures("step", [], modules["quality_checks"].perplexity_in) == 69.5


def test_output_that_is_no_output_names_the_file(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    llama = modules["quality_llama"]
    (tmp_path / "held-out.txt").write_text("x", encoding="utf-8")
    checker = llama.LlamaCheck(FakePeers(), tmp_path / "check", lambda step, command: "", sys.executable, 4096)
    what = llama.Checked("demo Q4_0", demo_folder(), tmp_path / "held-out.txt", tmp_path, tmp_path, tmp_path)
    with pytest.raises(
        modules["peers_setup"].SetupFailed,
        match=r"demo Q4_0: .*: llama-perplexity printed no",
    ):
        checker.of(what)


def test_keys_tell_parts_and_sources_apart(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    keys = modules["quality_keys"]
    assert len({keys.key_of(*parts) for parts in (("a", "b"), ("b", "a"), ("ab",), ("a", "b", ""))}) == 4
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "x.py").write_text("one = 1")
    (tmp_path / "notes.md").write_text("one")
    first = keys.sources_key(tmp_path)
    (tmp_path / "notes.md").write_text("two")
    assert keys.sources_key(tmp_path) == first
    (tmp_path / "inner" / "x.py").write_text("one = 2")
    assert keys.sources_key(tmp_path) != first
