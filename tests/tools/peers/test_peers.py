"""hexserve beside llama-server: ratios, bars, and what is set up once. No llama-server is built here."""

import os
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from engine.compile.check.parity import Interval
from engine.evaluation.evaluate import Quality
from server.commands.own_server import OwnServer
from tools.fidelity import __main__ as tools_fidelity
from tools.fidelity.__main__ import BAR
from tools.fidelity.served import ServedFile
from tools.llama_cpp.figures import Fidelity, FirstWindows, PrintedMean
from tools.llama_cpp.programs import BuildFailed, LlamaCpp
from tools.peers import __main__ as peers
from tools.peers import fidelity, report, setup
from tools.peers.agreement import ASKED, prompts_of, share_of_equals
from tools.peers.baselines import baselines_named
from tools.peers.fidelity import instructions_in, kernels, ratio_of_fidelity
from tools.peers.memory import MemoryWatch, tree_memory

FIGURES = {
    "load": {"max_tokens": 64},
    "comparisons": [
        {"clients": 1, "tokens_per_second": 1.55, "first_token_p50": 0.7, "gap_p50": 0.9, "gap_p95": None},
        {"clients": 16, "tokens_per_second": 1.6, "first_token_p50": 0.5, "gap_p50": 0.9, "gap_p95": 1.2},
    ],
}


def test_ratios_against_their_bars() -> None:
    found = report.ratios_of_load(128, FIGURES)
    assert [(each.load, each.name, each.holds) for each in found] == [
        ("128 in, 64 out, 1 client", "output tok/s", True),
        ("128 in, 64 out, 1 client", "first token", False),
        ("128 in, 64 out, 1 client", "median gap", None),
        ("128 in, 64 out, 1 client", "p95 gap", None),
        ("128 in, 64 out, 16 clients", "output tok/s", False),
        ("128 in, 64 out, 16 clients", "first token", True),
        ("128 in, 64 out, 16 clients", "median gap", None),
        ("128 in, 64 out, 16 clients", "p95 gap", True),
    ]
    assert "| 128 in, 64 out, 1 client | first token | 0.70 | ≤ 0.5 | no |" in report.table(found)


def test_bars_beside_other_servers() -> None:
    found = report.ratios_of_load(128, FIGURES, "ik")
    assert [(each.load, each.name, each.bar, each.holds) for each in found if each.bar] == [
        ("ik: 128 in, 64 out, 1 client", "output tok/s", 0.95, True),
        ("ik: 128 in, 64 out, 16 clients", "output tok/s", 1.0, True),
    ]


def test_other_servers_have_names() -> None:
    assert [each.name for each in baselines_named("ik,vllm")] == ["ik", "vllm"]
    assert baselines_named("") == []
    with pytest.raises(ArgumentTypeError, match="foo is none of ik, ortgenai, openvino, vllm"):
        baselines_named("ik,foo")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["peers", "--starts", "--with", "ik"], "--starts compiles the file itself"),
        (["peers", "--starts", "--bundle", "b"], "--starts compiles the file itself"),
        (["peers", "--with", "foo"], "argument --with: foo is none of"),
        (["fidelity", "--context", "64", "--made"], "--context measures the published file"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(
    command: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        {"peers": peers, "fidelity": tools_fidelity}[command[0]].main()
    assert told in capsys.readouterr().err


def test_prompts_are_passages_of_whole_words() -> None:
    text = " ".join(f"word{number}" for number in range(4_000))
    prompts = prompts_of(text)
    assert len(prompts) == len(set(prompts)) == ASKED
    assert all(f" {prompt} " in text for prompt in prompts)


def test_shares_of_equal_tokens() -> None:
    assert share_of_equals([" a", "b"], [" a", "c"]) == 0.5
    with pytest.raises(ValueError, match="no prompt"):
        share_of_equals([], [])


def test_prefix_and_memory() -> None:
    effect = {"cold_s": 4.0, "warm_s": 0.2, "warm_over_cold": 0.05}
    other = {"cold_s": 2.0, "warm_s": 0.1, "warm_over_cold": 0.05}
    prefix = report.ratios_of_prefix(1000, {"shared_prefix": [{"server": 0, **other}, {"server": 1, **effect}]})
    assert [(each.value, each.holds) for each in prefix] == [(0.05, True), (0.05, None), (2.0, None)]
    rss, pss = report.ratios_of_memory((5_000_000_000, 0), (2_000_000_000, 0))
    assert (rss.value, rss.holds, pss.value, pss.holds) == (2.5, False, None, None)


def test_starts_against_their_bars() -> None:
    found = report.ratios_of_start(12.0, 4.5, 1.5)
    assert [(each.name, each.value, each.holds) for each in found] == [
        ("seconds of hexserve, compiling the file", 12.0, True),
        ("seconds of hexserve", 4.5, False),
        ("start", 3.0, None),
    ]
    assert found[-1].load == "start to first answer, 4.5 / 1.5 s"


def test_a_first_start_compiles_and_the_others_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All with one cache, which is gone afterwards."""
    begun: list[str] = []
    seconds = iter((0, 9, 10, 13, 20, 21, 30, 32, 40, 41, 50, 57, 60, 61))
    caches: set[Path] = set()

    @contextmanager
    def started(name: str, *options: object) -> Iterator[OwnServer]:
        begun.append(name)
        caches.update(Path(str(options[-1])) for _ in options)
        assert all(cache.is_dir() for cache in caches)
        yield OwnServer(name, 1)

    monkeypatch.setattr(peers, "hexserve", lambda *options: started("own", *options))
    monkeypatch.setattr(peers, "ask", lambda address: None)
    monkeypatch.setattr(peers.time, "monotonic", lambda: float(next(seconds)))
    found = peers.measured_starts(lambda: started("other"), tmp_path / "m.gguf", 2)
    assert begun == ["own", *["own", "other"] * 3]
    assert [each.value for each in found] == [9.0, 3.0, 3.0]
    assert len(caches) == 1 and not any(cache.exists() for cache in caches)


def test_a_step_that_fails_is_named(tmp_path: Path) -> None:
    folder = setup.PeersFolder(tmp_path, Console(quiet=True))
    with pytest.raises(BuildFailed, match=r"compile the bundle failed .*does not exist"):
        folder.bundle(tmp_path / "missing.gguf", "")


def test_the_command_tells_its_options() -> None:
    command = [sys.executable, "-m", "tools.peers", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert "--setup-only" in done.stdout and "--bundle" in done.stdout
    assert done.stderr == ""


def test_memory_of_a_process_tree() -> None:
    with MemoryWatch((os.getpid(),)) as seen:
        rss, _ = tree_memory(os.getpid())
    assert rss > 1_000_000 and seen.peaks[os.getpid()].rss > 1_000_000
    assert tree_memory(2**22 + 1) == (0, 0)


def test_instructions_are_those_that_llama_cpp_prints() -> None:
    printed = "system_info: CPU : SSE3 = 1 | AVX2 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 0 | REPACK = 1 |"
    assert instructions_in(printed) == ["AVX2", "AVX512_VNNI"]


def a_tree(folder: Path, printed: str = "") -> LlamaCpp:
    """llama.cpp with a llama-perplexity that is there already, and prints this."""
    program = folder / "build" / "bin" / "llama-perplexity"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{printed}' >&2\nexit 1\n")
    program.chmod(0o755)
    return LlamaCpp(folder, folder / "build", print)


def test_kernels_of_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp says its own before it fails; of ours AMX is left out."""
    facts = tmp_path / "cpuinfo"
    facts.write_text("flags : fpu avx2 avx512_vnni amx_int8\n")
    monkeypatch.setattr(fidelity, "CPU_FACTS", facts)
    llama = a_tree(tmp_path, "CPU : AVX2 = 1 | AVX512_VNNI = 0 | AMX_INT8 = 1 |")
    told = kernels(llama, tmp_path / "m.gguf")
    assert told == "hexserve multiplies with AVX2, AVX512_VNNI, llama.cpp with AVX2, AMX_INT8."


@pytest.mark.parametrize("kl", [Interval(3e-3, 2e-3, 4e-3), None])
def test_fidelity_is_one_kl_over_the_other(
    kl: Interval | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same text, in a folder that is gone afterwards."""
    texts: list[str] = []

    class Measured:
        def __init__(self, *given: object) -> None:
            self.given = given

        def one(self, text: Path, kind: str, floats: str) -> Fidelity:
            texts.append(text.read_text())
            (tmp_path / "scratch" / "llama").mkdir()
            mean = PrintedMean(2e-3, 1e-4)
            return Fidelity("m", kind, floats, mean, mean, mean, mean, mean, FirstWindows(4, mean, mean))

    def served(files: list[Path], text: str, *given: object) -> list[ServedFile]:
        texts.append(text)
        return [ServedFile(Quality(8160, Interval(9.0, 8.0, 10.0), kl=kl), "float32", 1) for _ in files]

    monkeypatch.setattr(fidelity, "Measurement", Measured)
    monkeypatch.setattr(fidelity, "read_as_served", served)
    monkeypatch.setattr(fidelity, "held_out_text", lambda tree: "a text")
    given = tmp_path / "m.gguf", a_tree(tmp_path), tmp_path / "scratch", print
    if kl is None:
        with pytest.raises(BuildFailed, match=r"m\.gguf was compared with nothing"):
            ratio_of_fidelity(*given)
    else:
        found = ratio_of_fidelity(*given)
        assert (found.value, found.bar, found.holds) == (pytest.approx(1.5), BAR, False)
        assert found.load == "KL to the file's floats, 3.0e-03 / 2.0e-03 on 8,160 tokens"
        assert found.name == "float32 caches / float16"
    assert texts == ["a text", "a text"]
    assert not (tmp_path / "scratch").exists()
