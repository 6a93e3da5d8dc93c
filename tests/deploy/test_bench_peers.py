"""hexserve beside llama-server: ratios, bars, drawing, and what is set up once. No llama-server is built here."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from rich.console import Console

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module", autouse=True)
def deploy_path() -> Iterator[None]:
    sys.path.insert(0, str(DEPLOY))
    yield
    sys.path.remove(str(DEPLOY))


@pytest.fixture(scope="module")
def report(deploy_path: None) -> ModuleType:
    return importlib.import_module("peers_report")


@pytest.fixture(scope="module")
def setup(deploy_path: None) -> ModuleType:
    return importlib.import_module("peers_setup")


FIGURES = {
    "load": {"max_tokens": 64},
    "comparisons": [
        {"clients": 1, "tokens_per_second": 1.45, "first_token_p50": 0.7, "gap_p50": 0.9, "gap_p95": None},
        {"clients": 16, "tokens_per_second": 1.4, "first_token_p50": 0.5, "gap_p50": 0.9, "gap_p95": 1.5},
    ],
}


def test_ratios_against_their_bars(report: ModuleType) -> None:
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
    assert "| 128 in, 64 out, 1 client | first token | 0.70 | ≤ 0.6 | no |" in report.table(found)


def test_prefix_and_memory(report: ModuleType) -> None:
    effect = {"cold_s": 4.0, "warm_s": 0.2, "warm_over_cold": 0.05}
    other = {"cold_s": 2.0, "warm_s": 0.1, "warm_over_cold": 0.05}
    prefix = report.ratios_of_prefix(1000, {"shared_prefix": [{"server": 0, **other}, {"server": 1, **effect}]})
    assert [(each.value, each.holds) for each in prefix] == [(0.05, True), (0.05, None), (2.0, None)]
    rss, pss = report.ratios_of_memory((5_000_000_000, 0), (2_000_000_000, 0))
    assert (rss.value, rss.holds, pss.value, pss.holds) == (2.5, False, None, None)


def test_every_ratio_is_drawn(report: ModuleType) -> None:
    found = report.ratios_of_load(128, FIGURES)
    root = ElementTree.fromstring(report.drawing(found, "as measured"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("output tok/s") == 2 and "as measured" in texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}line"))) == 6  # those with a bar


def test_what_is_there_is_used_again(setup: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "qwen3-0.6b-q4_0.gguf").touch()
    assert setup.PeersFolder(tmp_path, Console(quiet=True)).gguf().parent == tmp_path


def test_a_step_that_fails_is_named(setup: ModuleType, tmp_path: Path) -> None:
    folder = setup.PeersFolder(tmp_path, Console(quiet=True))
    with pytest.raises(setup.SetupFailed, match=r"say no failed .*: no"):
        folder._run("say no", [sys.executable, "-c", "import sys; sys.exit('no')"])


def test_the_command_tells_its_options() -> None:
    command = [sys.executable, str(DEPLOY / "bench_peers.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert "--setup-only" in done.stdout and "--bundle" in done.stdout
    assert done.stderr == ""


def test_memory_of_a_process_tree() -> None:
    watch = importlib.import_module("peers_memory")
    with watch.MemoryWatch((os.getpid(),)) as seen:
        rss, _ = watch.tree_memory(os.getpid())
    assert rss > 1_000_000 and seen.peaks[os.getpid()].rss > 1_000_000
    assert watch.tree_memory(2**22 + 1) == (0, 0)


def test_instructions_are_those_that_llama_cpp_prints() -> None:
    printed = "system_info: CPU : SSE3 = 1 | AVX2 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 0 | REPACK = 1 |"
    assert importlib.import_module("peers_fidelity").instructions_in(printed) == ["AVX2", "AVX512_VNNI"]
