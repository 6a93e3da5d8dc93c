"""The shipped block-diffusion model: its files, its tokenizer, what it answers and in how many steps."""

import json

import pytest
from tokenizers import Tokenizer

from engine.demo.location import demo_folder, diffusion_folder
from tools.demo_model.corpus.conversation import exchange, prompt_text
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


@pytest.fixture(scope="module")
def examinee(tmp_path_factory: pytest.TempPathFactory) -> DiffusionExaminee:
    return DiffusionExaminee(diffusion_folder(), tmp_path_factory.mktemp("exported"), 0.9)


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
    table = network.model.embed_tokens.weight
    assert network.lm_head.weight is table
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
def test_model_answers_in_its_domain(examinee: DiffusionExaminee, question: str, expected: str) -> None:
    assert expected in examinee.answers([prompt_text(exchange(question, "?"))], 48)[0]


def test_a_step_gives_more_than_a_token(examinee: DiffusionExaminee) -> None:
    examinee.tokens = examinee.steps = 0
    examinee.answers([prompt_text(exchange("What is 12 + 34?", "?"))], 48)
    assert examinee.tokens > 2 * examinee.steps > 0
