"""Logits of generated Genie folders, as `hexserve eval` reads them, are those of the checkpoint itself."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from engine.evaluation.models import open_bundle, open_reference
from tests.genie.generator import ERAS, Recipe, generate
from tests.genie.twin import convert_to_twin

TEXT = [5, 17, 99, 123, 300, 42, 7, 8, 9, 10, 11] * 3


@pytest.mark.parametrize(
    "recipe",
    [
        *(Recipe(era=era, precision="twin") for era in ERAS),
        Recipe(parts=3, head_alone=True, precision="twin"),
        Recipe(heads="_h", precision="twin"),
        Recipe(heads="_head_", scatter=True, index="uint32", precision="twin"),
        Recipe(kv_only_rows=(8,), head_alone=True, parts=4, same_hidden_names=False, precision="twin"),
        Recipe(head_alone=True, head_weight="lm_head.raw", precision="twin"),
    ],
    ids=[*ERAS, "head alone", "a cache for each head", "written in place", "prefill without logits", "head's weights"],
)
def test_logits_are_those_of_the_checkpoint(checkpoint: Path, tmp_path: Path, recipe: Recipe) -> None:
    folder = convert_to_twin(generate(checkpoint, tmp_path / "bundle", recipe), tmp_path / "cache")
    with ExitStack() as stack:
        model = open_bundle("mine", folder, None, stack)
        reference = open_reference("float", checkpoint, model.made_for, None, stack)
        longest = (TEXT * 3)[: model.longest]
        for text in (longest, TEXT[4:20], longest):
            found, expected = model.logits(text), reference.logits(text)
            assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-3
        assert len(longest) == model.longest >= 57
