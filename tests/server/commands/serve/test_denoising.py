"""What is said of settings that the model to be served cannot honour."""

import dataclasses

from engine.bundle.manifest import DiffusionSpec
from engine.config import EngineConfig
from server.commands.serve.denoising import remarks
from server.settings import Settings

USUAL = Settings(EngineConfig("bundle"))


def test_a_model_of_tokens_says_which_settings_change_nothing() -> None:
    assert list(remarks(None, USUAL)) == []
    changed = dataclasses.replace(USUAL, denoising_steps=2, entropy_bound=0.5)
    assert list(remarks(None, changed)) == [
        "denoising_steps changes nothing: this model generates one token after the other, not blocks",
        "entropy_bound changes nothing: this model generates one token after the other, not blocks",
    ]


def test_a_model_of_blocks_says_what_it_takes_of_too_many_steps() -> None:
    blocks = DiffusionSpec(4, 300)
    assert list(remarks(blocks, dataclasses.replace(USUAL, denoising_steps=4, entropy_bound=0.5))) == []
    assert list(remarks(blocks, dataclasses.replace(USUAL, denoising_steps=9))) == [
        "denoising_steps is 9, a block of this model has 4 tokens: 4 passes at most"
    ]
