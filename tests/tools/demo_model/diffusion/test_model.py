"""The shipped block-diffusion model: its files, its tokenizer, what it answers and in how many steps."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.compile.arguments import ExportArguments
from engine.compile.graphs.block_export import export_blocks
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder, diffusion_folder
from tools.block_loop import BlockLoop, ExportedGraph, LoopOptions, StepKind
from tools.demo_model.corpus.conversation import exchange, prompt_text
from tools.demo_model.diffusion.decoder import BlockDecoder, Decoding
from tools.demo_model.diffusion.evaluate import DiffusionExaminee
from tools.demo_model.diffusion.train import MASK_TEXT, continued_network

_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "README.md",
}


@cache
def _examinee() -> DiffusionExaminee:
    return DiffusionExaminee(diffusion_folder(), Decoding(0, 0, confidence=0.9))


def test_folder_is_complete_and_small() -> None:
    files = {path.name: path.stat().st_size for path in diffusion_folder().iterdir()}
    assert set(files) == _FILES
    assert files["model.safetensors"] <= 8_000_000


def test_config_is_that_of_an_sdar_checkpoint() -> None:
    config = json.loads((diffusion_folder() / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("sdar", ["SDARForCausalLM"])
    assert (config["block_size"], config["mask_token_id"], config["vocab_size"]) == (4, 3072, 3073)


def test_tokenizer_is_the_demos_with_a_mask_token() -> None:
    ours, demo = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (diffusion_folder(), demo_folder()))
    assert ours.get_vocab() == demo.get_vocab() | {MASK_TEXT: 3072}
    assert ours.encode(f"a{MASK_TEXT}").ids[-1] == 3072
    assert ours.decode([3072]) == ""
    assert json.loads((diffusion_folder() / "tokenizer_config.json").read_text())["mask_token"] == MASK_TEXT


def test_training_starts_from_the_demo_with_one_more_token() -> None:
    network = continued_network()
    table = network.embed_tokens.weight
    assert table.shape == (3073, 256)
    assert table[:3072].mean(0).allclose(table[3072])


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of France?", "Paris"),
        ("What is 12 + 34?", "46"),
        ("Repeat this list: apple, tree, car, lamp", "apple, tree, car, lamp"),
        ("Who are you?", "hexserve"),
    ],
)
def test_model_answers_in_its_domain(question: str, expected: str) -> None:
    assert expected in _examinee().answers([prompt_text(exchange(question, "?"))], 48)[0]


def test_the_exported_graph_says_what_the_decoder_says(tmp_path: Path) -> None:
    """Two implementations that share no code, on the shipped weights; the network is Qwen3's."""
    source = tmp_path / "source"
    shutil.copytree(diffusion_folder(), source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForCausalLM"]}))
    export_blocks(ExportArguments(source, tmp_path / "out", 128), SilentProgress())
    graph = ExportedGraph(tmp_path / "out", threads=1)
    examinee = _examinee()
    for question in ("What is 12 + 34?", "Repeat this list: apple, tree, car, lamp"):
        prompt = examinee.tokenizer.encode(prompt_text(exchange(question, "?")), add_special_tokens=False).ids
        loop = BlockLoop(graph.export, graph.run)
        (expected,) = BlockDecoder(examinee.network, Decoding(3072, 48, 0.9)).answers([prompt])
        assert loop.generate(prompt, LoopOptions(48, 0.9)) == expected.tokens
        assert loop.steps.count(StepKind.ITERATION) == expected.steps
