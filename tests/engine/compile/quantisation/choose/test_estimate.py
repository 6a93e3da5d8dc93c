"""The estimate grows with what it depends on."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.quantisation.choose.quality import (
    BEST_TEXTS,
    LEAST_TOKENS,
    MOST_TOKENS,
    PATIENCE,
    TOKENS,
    estimate_of,
    estimated,
    estimated_for,
    minutes_text,
)
from engine.compile.sources.source import FolderSource
from engine.models.family import read_network
from engine.models.network import Network
from tests.hybrid import make_hybrid


@pytest.fixture
def network(tiny_checkpoint: Path) -> Network:
    return read_network(FolderSource(tiny_checkpoint).config)


def larger(network: Network, **sizes: int) -> Network:
    return replace(network, spec=msgspec.structs.replace(network.spec, **sizes))


@pytest.mark.parametrize("size", ["layers", "hidden", "ffn", "heads", "kv_heads", "vocab"])
def test_larger_networks_take_longer(size: str, network: Network) -> None:
    grown = larger(network, **{size: 2 * getattr(network.spec, size)})
    before, after = (estimated_for(each, True, 4096) for each in (network, grown))
    assert after.seconds > before.seconds
    assert after.memory >= before.memory


def test_more_tokens_take_longer_and_more_memory(network: Network) -> None:
    few, many = (estimated_for(network, True, tokens) for tokens in (4096, 8192))
    assert many.seconds > few.seconds
    assert many.memory > few.memory


def test_a_head_takes_longer(network: Network) -> None:
    assert estimated_for(network, True, 4096).seconds > estimated_for(network, False, 4096).seconds


def test_large_networks_get_fewer_tokens(network: Network) -> None:
    small = estimated(network, True)
    large = estimated(larger(network, hidden=4096, ffn=12_288, layers=36, heads=256, kv_heads=64), True)
    assert small.tokens == MOST_TOKENS
    assert LEAST_TOKENS <= large.tokens < MOST_TOKENS
    assert large.tokens == LEAST_TOKENS or large.seconds <= PATIENCE


def test_as_much_text_is_read_as_patience_allows(network: Network) -> None:
    found = set()
    for layers in (8, 16, 20, 24, 28):
        grown = larger(network, hidden=1024, ffn=3072, heads=64, kv_heads=32, layers=layers)
        estimate = estimated(grown, True)
        assert estimate.tokens == LEAST_TOKENS or estimate.seconds <= PATIENCE
        for more in TOKENS[: TOKENS.index(estimate.tokens)]:
            assert estimated_for(grown, True, more).seconds > PATIENCE
        found.add(estimate.tokens)
    assert len(found) > 2


def test_the_best_quality_reads_more_text(network: Network) -> None:
    levels = (QualityLevel.GOOD, QualityLevel.BEST)
    good, best = (estimate_of(CompileArguments(Path(), Path(), quality=level), network) for level in levels)
    assert best.tokens == BEST_TEXTS * good.tokens
    assert good.seconds < best.seconds <= BEST_TEXTS * good.seconds


def test_recurrent_layers_count(tmp_path: Path) -> None:
    make_hybrid(tmp_path)
    network = read_network(FolderSource(tmp_path).config)
    assert estimated_for(network, True, 4096).seconds > estimated_for(larger(network, layers=4), True, 4096).seconds


def test_times_in_words() -> None:
    assert [minutes_text(seconds) for seconds in (12.4, 89, 90, 725)] == ["12 s", "89 s", "2 min", "12 min"]
