"""libGenie and our own loop give the same greedy tokens on the same binaries, in the HTP emulator."""

import shutil
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.sources.resolve import convert_folder
from tests.engine.text.in_process import InProcess
from tests.genie.emulator import EMULATOR, compile_demo, compile_generated, emulated_greedy
from tests.genie.generator import Recipe, generate
from tests.long.genie.report import COUNT, report
from tools.proofs.genie_reference import GenieAnswers, genie_greedy
from tools.proofs.genie_report import QUESTIONS
from tools.random_checkpoint import Qwen3Shape, write_checkpoint

pytestmark = pytest.mark.skipif(not EMULATOR, reason="the HTP emulator comes with onnxruntime-qnn for x86-64 Linux")

# The emulator takes 50 ms for a layer of any size. Not narrower than 256 columns: libGenie 2.51 does not clear its key
# caches, and what malloc left in small ones (up to 5e4) outweighs the float mask of -1000 that it writes itself.
SMALL = Qwen3Shape(layers=1, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn=96, vocab=384, max_position=512)
BOS = 0
CONTEXT = 256


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_demo(tmp_path_factory.mktemp("demo") / "demo", "--quant", "fp16", "--rows", "1,32")


@pytest.fixture(scope="module")
def asked(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[int]], GenieAnswers]:
    """Prompts as the chat template makes them, and what Genie answers."""
    manifest = load_manifest(demo)
    maker = InProcess.load(demo, manifest.text)
    prompts = [list(maker.chat([{"role": "user", "content": text}], None, {}, CONTEXT)) for text in QUESTIONS]
    return prompts, genie_greedy(demo, [(prompt, COUNT) for prompt in prompts], tmp_path_factory.mktemp("asked"))


def ours(bundle: Path, jobs: list[tuple[list[int], *tuple[int, ...]]], scratch: Path) -> list[list[int]]:
    """Our tokens up to the end token, which Genie does not give out."""
    ends = load_manifest(bundle).text.stop_ids
    return [list(takewhile(lambda token: token not in ends, row)) for row in emulated_greedy(bundle, jobs, scratch)]


def ran(answers: GenieAnswers, graph: str) -> int:
    """How often Genie ran a graph."""
    return sum(times for name, times in answers.steps.items() if name.endswith(f"_{graph}"))


def test_prefill_of_32_rows_then_one_row(
    demo: Path, asked: tuple[list[list[int]], GenieAnswers], tmp_path: Path
) -> None:
    """20 questions; one is longer than 32 tokens. The model has no BOS token, and Genie must not put one in front."""
    prompts, genie = asked
    assert len(prompts) == 20
    asked_again = slice(-8, None)  # the server below answers them all
    assert max(map(len, prompts[asked_again])) > 32
    jobs = [(prompt, COUNT, 32) for prompt in prompts[asked_again]]
    assert ours(demo, jobs, tmp_path) == genie.tokens[asked_again]
    assert ran(genie, "ar32_cl256_1_of_2") == sum(-(-len(prompt) // 32) for prompt in prompts)
    assert ran(genie, "ar1_cl256_1_of_2") == (COUNT - 1) * len(prompts)


def test_without_its_manifest_it_is_a_genie_folder_to_us_too(
    demo: Path, asked: tuple[list[list[int]], GenieAnswers], tmp_path: Path
) -> None:
    prompts, genie = asked
    folder = tmp_path / "folder"
    shutil.copytree(demo, folder, ignore=shutil.ignore_patterns("manifest.json", "*.onnx"))
    bundle = convert_folder(folder, tmp_path / "cache")
    assert not load_manifest(bundle).text.add_bos
    assert ours(bundle, [(prompt, COUNT, 32) for prompt in prompts[:2]], tmp_path) == genie.tokens[:2]


def test_eight_clients_get_genies_answers_in_fewer_steps(
    demo: Path,
    asked: tuple[list[list[int]], GenieAnswers],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`tools/proofs/genie_report.py` as it runs, but for Genie's answers, which the test above has already."""
    code = report(["genie_report.py", str(demo), "--tokens", str(COUNT), "--widest"], asked, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert code == 0 and "same answers: 20 of 20" in lines
    theirs, ours = (int(line.split(" steps")[0].split()[-1]) for line in lines[1:3])
    assert theirs == sum(asked[1].steps.values())
    assert 3 * ours < theirs


def test_one_row_alone(asked: tuple[list[list[int]], GenieAnswers], tmp_path: Path) -> None:
    """Token by token from the first one on: the answers of 32 rows are not looked at."""
    prompts = asked[0][-2:]
    demo = compile_demo(tmp_path / "demo", "--quant", "fp16", "--rows", "1")
    theirs = genie_greedy(demo, [(prompt, COUNT) for prompt in prompts], tmp_path)
    assert ours(demo, [(prompt, COUNT) for prompt in prompts], tmp_path) == theirs.tokens
    assert ran(theirs, "ar1_cl256_1_of_2") == theirs.steps.total() == sum(len(prompt) + COUNT - 1 for prompt in prompts)


@pytest.mark.parametrize(
    "options",
    [
        ("--quant", "w4", "--part-mb", "3"),
        ("--quant", "w8a16", "--split", "none"),
        ("--quant", "w4a16"),
    ],
    ids=["w4", "w8a16", "w4a16"],
)
def test_the_other_modes(tmp_path: Path, options: tuple[str, ...], short_text: Path) -> None:
    """w4 in four parts, two of them layers; w8a16 in one, whose graphs keep their names."""
    demo = compile_demo(tmp_path / "demo", "--rows", "1,32", "--calibration", str(short_text), *options)
    maker = InProcess.load(demo, load_manifest(demo).text)
    prompts = [list(maker.chat([{"role": "user", "content": text}], None, {}, CONTEXT)) for text in QUESTIONS[:2]]
    theirs = genie_greedy(demo, [(prompt, 3) for prompt in prompts], tmp_path)
    assert ours(demo, [(prompt, 3, 32) for prompt in prompts], tmp_path) == theirs.tokens


def test_a_second_context(tmp_path: Path) -> None:
    """One LM head serves both contexts; Genie gets a copy of it, and changes over in the middle of a prompt."""
    demo = compile_demo(tmp_path / "demo", "--quant", "fp16", "--rows", "1,32", "--context", "128,256")
    assert {path.name for path in demo.glob("*_2_of_2*.bin")} == {
        *("ar1_cl256_2_of_2.bin", "ar1_cl256_2_of_2_for_cl128.bin"),
        *("ar32_cl256_2_of_2.bin", "ar32_cl256_2_of_2_for_cl128.bin"),
    }
    prompt = list(range(5, 135))
    theirs = genie_greedy(demo, [(prompt, 3)], tmp_path)
    assert ours(demo, [(prompt, 3, 32)], tmp_path) == theirs.tokens
    assert (ran(theirs, "ar32_cl128_1_of_2"), ran(theirs, "ar32_cl256_1_of_2")) == (3, 2)


def test_u16_and_u8_in_three_parts_as_others_export_them(tmp_path: Path) -> None:
    """A generated folder, with a BOS token that Genie puts in front by itself."""
    write_checkpoint(tmp_path / "tiny", SMALL)
    shapes = (StepShape(1, CONTEXT - 1), StepShape(32, CONTEXT - 32))
    made = generate(
        tmp_path / "tiny", tmp_path / "bundle", Recipe(shapes=shapes, head_alone=True).for_emulator(CONTEXT)
    )
    compile_generated(made, tmp_path / "compile")
    generator = np.random.default_rng(7)
    prompts = [generator.integers(3, SMALL.vocab, generator.integers(1, 9)).tolist() for _ in range(6)]
    bundle = convert_folder(made.folder, tmp_path / "cache")
    theirs = genie_greedy(made.folder, [(prompt, 4) for prompt in prompts], tmp_path)
    assert ours(bundle, [([BOS, *prompt], 4, 32) for prompt in prompts], tmp_path) == theirs.tokens
