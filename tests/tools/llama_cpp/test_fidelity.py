"""The order of llama.cpp's programs and what is made of their words, with stand-ins for the programs."""

import shlex
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tests.tools.llama_cpp.test_figures import PRINTED
from tools.llama_cpp.fidelity import HEADER, MAGIC, PLACES, Measurement, measured, tokens_of
from tools.llama_cpp.programs import BuildFailed, LlamaCpp

# Makes the file it is asked for; what is printed is in a file beside it.
STAND_IN = """#!{python} -IS
import pathlib, sys
words, here = sys.argv[1:], pathlib.Path(sys.argv[0]).parent
if "--save-all-logits" in words:
    pathlib.Path(words[words.index("--save-all-logits") + 1]).write_bytes((here / "logits").read_bytes())
elif "--allow-requantize" in words:
    pathlib.Path(words[2]).write_text(words[3])
else:
    print((here / "printed").read_text(encoding="utf-8"))
"""


@pytest.fixture
def programs(tmp_path: Path) -> LlamaCpp:
    """Stand-ins for llama-quantize and llama-perplexity."""
    bin_folder = tmp_path / "build" / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("llama-quantize", "llama-perplexity"):
        (bin_folder / name).write_text(STAND_IN.format(python=sys.executable))
        (bin_folder / name).chmod(0o755)
    tokens = np.arange(8, dtype="<i4").tobytes()
    (bin_folder / "logits").write_bytes(MAGIC + HEADER.pack(4, 100, 2) + tokens + b"the rest")
    (bin_folder / "printed").write_text(PRINTED, encoding="utf-8")
    return LlamaCpp(tmp_path, tmp_path / "build", pytest.fail)


def test_each_file_is_held_against_the_floats_that_its_place_names(programs: LlamaCpp, tmp_path: Path) -> None:
    said: list[str] = []
    scratch, published = tmp_path / "scratch", tmp_path / "model.gguf"
    found = measured([Measurement("m", published, programs, scratch, said.append)], tmp_path / "text", "llama 1")
    assert tuple((each.kind, each.floats) for each in found.fidelity) == PLACES
    assert found.tokens == {"m": sha256(np.arange(8, dtype="<i4").tobytes()).hexdigest()}
    floats = str(scratch / "floats.gguf")
    made = [shlex.split(command)[2:5] for command in said if "--allow-requantize" in command]
    assert made[0] == [str(published), floats, "F32"]
    assert [str(scratch / "Q8_0.gguf"), floats, "F32"] in made
    assert [str(published), str(scratch / "F16.gguf"), "F16"] in made
    assert sum("--save-all-logits" in command for command in said) == 4 and not scratch.exists()


def test_what_a_broken_run_measured_is_used_again(programs: LlamaCpp, tmp_path: Path) -> None:
    said: list[str] = []
    quantize = tmp_path / "build" / "bin" / "llama-quantize"
    works = quantize.read_text()
    quantize.write_text(
        works.replace("import pathlib, sys", "import pathlib, sys; 'Q8_0' in sys.argv and sys.exit('full')")
    )
    with pytest.raises(BuildFailed, match="llama-quantize failed: full"):
        Measurement("m", tmp_path / "model.gguf", programs, tmp_path / "scratch", said.append).run(tmp_path)
    quantize.write_text(works)
    before = len(said)
    _, found = Measurement("m", tmp_path / "model.gguf", programs, tmp_path / "scratch", said.append).run(tmp_path)
    assert len(found) == len(PLACES) and not any("Q4_0" in command for command in said[before:])


def test_words_that_say_no_figure_are_an_error(programs: LlamaCpp, tmp_path: Path) -> None:
    (tmp_path / "build" / "bin" / "printed").write_text("nothing")
    with pytest.raises(BuildFailed, match="published of m: llama-perplexity printed no kl"):
        Measurement("m", tmp_path / "model.gguf", programs, tmp_path / "scratch", lambda step: None).run(tmp_path)


def test_a_program_that_fails_is_named(programs: LlamaCpp, tmp_path: Path) -> None:
    (tmp_path / "build" / "bin" / "llama-quantize").write_text(f"#!{sys.executable}\nimport sys; sys.exit('too old')\n")
    with pytest.raises(BuildFailed, match="llama-quantize failed: too old"):
        Measurement("m", tmp_path / "model.gguf", programs, tmp_path / "scratch", lambda step: None).run(tmp_path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logits").write_bytes(b"GGUF" * 9)
    with pytest.raises(BuildFailed, match="was not written by llama-perplexity"):
        tokens_of(tmp_path / "logits")
