"""Log-mel frames against transformers' feature extractor."""

import numpy as np
import pytest

from engine.speech.log_mel import log_mel

SECONDS = 16_000


@pytest.mark.parametrize("mels", [80, 128])
def test_equal_to_transformers(mels: int) -> None:
    from transformers import WhisperFeatureExtractor

    rng = np.random.default_rng(5)
    tone = np.sin(np.arange(3 * SECONDS) * 0.21) * np.linspace(0, 1, 3 * SECONDS)
    for samples in (tone + 0.05 * rng.normal(size=tone.shape), rng.normal(size=31 * SECONDS), np.zeros(400)):
        given = samples.astype(np.float32)
        whole = np.zeros((1, 30 * SECONDS), np.float32)
        whole[0, : len(given)] = given[: 30 * SECONDS]
        # The other form of its features is computed in single precision, and is further from the definition than we.
        wanted = WhisperFeatureExtractor(feature_size=mels)._np_extract_fbank_features(whole, "cpu")[0]
        assert np.abs(log_mel(given, mels, 3000) - wanted).max() < 1e-5
