"""Where the network is cut: names chain, layers are complete, no part is larger than asked."""

from itertools import pairwise

import pytest

from engine.bundle.manifest import GraphKind
from engine.compile.arguments import CompileArguments, Quant, Split, Target
from engine.compile.targets.npu import layer_bytes, plan_binaries
from engine.errors import CompileError
from engine.models.family import read_network
from engine.models.network import Network

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
}


@pytest.fixture(scope="module")
def network() -> Network:
    return read_network(QWEN3_4B, 4096)


def arguments(**changes: object) -> CompileArguments:
    fields = {"source": "s", "output": "o", "target": Target.X_ELITE, "rows": (1,), "context": (1024,), **changes}
    return CompileArguments(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("quant", [Quant.FP16, Quant.W4])
def test_parts_chain_and_cover_every_layer_once(network: Network, split: Split, quant: Quant) -> None:
    parts = plan_binaries(arguments(split=split, quant=quant), network)
    assert [layer for part in parts for layer in part.layers] == list(range(36))
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert {part.count for part in parts} == {len(parts)}
    for before, after in pairwise(parts):
        assert after.source == before.result
    is_on_host = split is Split.HOST_LMHEAD
    assert (parts[0].source, parts[-1].result) == ("inputs_embeds" if is_on_host else "input_ids", "logits")
    assert [part.has_table for part in parts] == [not is_on_host, *[False] * (len(parts) - 1)]
    assert parts[-1].has_head and sum(part.has_head for part in parts) == 1
    assert (parts[-1].kind is GraphKind.LMHEAD) == (split is not Split.NONE)
    assert (parts[0].kind is GraphKind.LUT) == (split is Split.LUT_LMHEAD)


def test_two_gigabytes_make_two_parts_of_four_billion_weights_at_four_bits(network: Network) -> None:
    parts = plan_binaries(arguments(quant=Quant.W4), network)
    assert [len(part.layers) for part in parts] == [18, 18, 0]
    assert 18 * layer_bytes(Quant.W4, network) + 151_936 * 2560 * 2 <= 2e9
    assert len(plan_binaries(arguments(quant=Quant.FP16), network)) == 7


def test_parts_are_smaller_where_memory_is(network: Network) -> None:
    sixteen = plan_binaries(arguments(quant=Quant.W4), network, 16 * 10**9)
    assert [len(part.layers) for part in sixteen] == [7, 7, 7, 7, 8, 0]
    assert 10 * (7 * layer_bytes(Quant.W4, network) + 151_936 * 2560 * 2) <= 0.8 * 16e9
    same = plan_binaries(arguments(quant=Quant.W4), network, 64 * 10**9)
    assert same == plan_binaries(arguments(quant=Quant.W4), network)
    # What cannot be cut is one part however little memory there is, and a size that was asked for is kept.
    assert len(plan_binaries(arguments(quant=Quant.W4), network, 10**9)) == 20
    asked = arguments(quant=Quant.W4, part_mb=3000)
    assert plan_binaries(asked, network, 16 * 10**9) == plan_binaries(asked, network)


def test_a_limit_below_one_layer_is_refused_with_the_sizes(network: Network) -> None:
    with pytest.raises(CompileError, match=r"--part-mb 100 is too small: one layer has 63 MB, the embedding 778 MB"):
        plan_binaries(arguments(quant=Quant.W4, part_mb=100), network)


def test_small_networks_stay_whole(network: Network) -> None:
    small = read_network({**QWEN3_4B, "num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 1000}, 512)
    (only,) = plan_binaries(arguments(split=Split.NONE, quant=Quant.FP16), small)
    assert only.kind is GraphKind.DEFAULT
