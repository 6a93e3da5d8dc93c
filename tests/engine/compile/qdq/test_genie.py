"""libGenie, Qualcomm's own engine, reads integer bundles as we do."""

from pathlib import Path

import pytest

from engine.compile.arguments import CompileArguments, Quant, Split, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.text_files import load_tokenizer
from engine.demo.location import demo_folder
from engine.genie.write import write_genie_files
from tests.genie.emulator import EMULATOR, emulated_greedy
from tests.genie.oracle import genie_greedy

QUESTIONS = ("What is the capital of France?", "What is 17 + 25?", "Copy this list: apple, pear, plum")
COUNT = 5


@pytest.mark.skipif(not EMULATOR, reason="the HTP emulator comes with onnxruntime-qnn for x86-64 Linux")
def test_same_greedy_tokens(tmp_path: Path) -> None:
    """A trained model: its choices are clear, so that a cosine's code rounded another way changes none."""
    arguments = CompileArguments(
        demo_folder(),
        tmp_path / "bundle",
        target=Target.X_ELITE,
        quant=Quant.W8A16,
        split=Split.NONE,
        rows=(1, 32),
        context=(256,),
        share_weights=False,
        parity_tokens=8,
        name="demo",
    )
    manifest = compile_bundle(arguments, SilentProgress())
    if not (arguments.output / "genie_config.json").exists():
        write_genie_files(arguments.output, manifest)
    tokenizer = load_tokenizer(demo_folder())
    prompts = [
        tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
        for question in QUESTIONS
    ]
    ours = emulated_greedy(arguments.output, [(prompt, COUNT, 32) for prompt in prompts], tmp_path)
    theirs = genie_greedy(arguments.output, [(prompt, COUNT) for prompt in prompts], tmp_path)
    assert ours == theirs
