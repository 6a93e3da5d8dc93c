"""What a worker would take, told by a process that loads nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bundle.manifest import load_manifest
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.worker.assembly import choose_shapes, settings_for
from engine.worker.estimate import WORKER_BYTES, estimate, main
from engine.worker.settings import plan_memory
from tests.bundles import Bundles
from tests.tiny_encoder import write_encoder


def test_it_is_the_plan_of_the_worker_and_the_worker_itself(bundles: Bundles) -> None:
    config = EngineConfig(str(bundles("free")), kv_offload_mb=3)
    manifest = load_manifest(bundles("free"))
    plan = plan_memory(manifest, choose_shapes(manifest, config), settings_for(manifest, config))
    assert estimate(config) == plan.together + WORKER_BYTES


@pytest.mark.parametrize("name", ["free", "segments"])
def test_the_part_for_prefixes_is_told_apart(name: str, bundles: Bundles, capsys: pytest.CaptureFixture[str]) -> None:
    """In a segmented bundle prefixes lie among the sequences' own columns: whole tokens of what the setting allows."""
    told = {}
    for offload in (0, 3):
        assert main([json.dumps({"bundle": str(bundles(name)), "kv_offload_mb": offload})]) == 0
        told[offload] = json.loads(capsys.readouterr().out)
    token = load_manifest(bundles(name)).kv_bytes_per_token
    assert told[0]["prefixes"] == 0
    assert 3 * 1024**2 - token < told[3]["prefixes"] <= 3 * 1024**2
    assert told[3]["bytes"] - told[3]["prefixes"] == told[0]["bytes"]


def test_a_draft_model_counts_as_well(bundles: Bundles) -> None:
    config = EngineConfig(str(bundles("segments")), kv_offload_mb=3)
    with_draft = estimate(replace(config, draft=str(bundles("segments int8"))))
    assert (
        with_draft
        == estimate(config) + estimate(EngineConfig(str(bundles("segments int8")), kv_offload_mb=0)) - WORKER_BYTES
    )


@pytest.mark.parametrize("slots", [0, 4096])
def test_another_device_takes_what_it_would_alone(slots: int, bundles: Bundles) -> None:
    one, other = (EngineConfig(str(bundles(name)), kv_offload_mb=3, kv_slots=slots) for name in ("segments", "free"))
    assert estimate(replace(one, devices=other.bundle)) == estimate(one) + estimate(other)


def test_what_cannot_be_served_is_said(bundles: Bundles, capsys: pytest.CaptureFixture[str]) -> None:
    config = EngineConfig(str(bundles("fixed")), kv_slots=100)
    with pytest.raises(BundleError, match="kv_slots cannot be set"):
        estimate(config)
    assert main([json.dumps({"bundle": str(bundles("fixed")), "kv_slots": 100})]) == 0
    assert json.loads(capsys.readouterr().out)["error"].startswith("kv_slots cannot be set")


def test_an_encoder_keeps_nothing_but_may_hold_its_weights_for_each_graph(tmp_path: Path) -> None:
    write_encoder(tmp_path / "tiny")
    arguments = CompileArguments(tmp_path / "tiny", tmp_path / "bundle", quant=Quant.FP32, rows=(32, 64))
    manifest = compile_bundle(arguments, SilentProgress())
    weights = sum(entry.bytes for entry in manifest.files.values())
    # A mask, and scores and weights of four heads, of 64 x 64; rows of 64 numbers, also queries, keys and values, and
    # of 96 in the feed-forward.
    steps = 4 * (64 * 64 * (1 + 2 * 4) + 64 * (5 * 64 + 96))
    assert estimate(EngineConfig(str(tmp_path / "bundle"))) == WORKER_BYTES + 2 * weights + steps
