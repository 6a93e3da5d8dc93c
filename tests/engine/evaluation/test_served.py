"""What the engine that serves makes of a text is what the bundle's graphs make of it."""

from contextlib import ExitStack

import numpy as np
import pytest

from engine.evaluation.models import open_bundle, open_served
from tests.bundles import Bundles


@pytest.mark.parametrize("kind", ["segments int4", "segments int8", "free"])
def test_every_token_of_a_text_has_its_logits(bundles: Bundles, kind: str) -> None:
    """In steps that the scheduler cuts, one text after the other, also where one is the beginning of another."""
    folder = bundles(kind)
    with ExitStack() as stack:
        graphs, served = open_bundle("graphs", folder, None, stack), open_served("served", folder, "", stack)
        for tokens in ([(i * 31 + 7) % 256 for i in range(90)], [7, 38, 69], [(i * 31 + 7) % 256 for i in range(40)]):
            found, expected = served.logits(tokens), graphs.logits(tokens)
            assert found.shape == expected.shape == (len(tokens), graphs.vocabulary.size)
            np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
            for first in (2, len(tokens) - 1):
                np.testing.assert_array_equal(served.logits(tokens, first=first), found[first:])
                np.testing.assert_allclose(graphs.logits(tokens, first=first), expected[first:], rtol=1e-4, atol=1e-4)
        assert served.form.endswith(", served") and served.longest < graphs.longest + 1
