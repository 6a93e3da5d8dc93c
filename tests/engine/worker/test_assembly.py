"""Shapes and sizes from settings, without loading a graph."""

import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import describe_file, load_manifest, save_manifest
from engine.bundle.variant import StepShape
from engine.config import EngineConfig
from engine.core.build import ModelLimits, build_scheduler
from engine.core.policy import CostTable
from engine.errors import BundleError
from engine.worker.assembly import assemble, choose_shapes
from tests.bundles import Bundles

CONFIG = EngineConfig(bundle="")


def capacity(bundles: Bundles, layout: str, config: EngineConfig) -> tuple[int, int]:
    manifest = load_manifest(bundles(layout))
    limits = ModelLimits(manifest.max_context, manifest.kv_bytes_per_token)
    scheduler = build_scheduler(choose_shapes(manifest, config), CostTable({}), limits, config)
    return scheduler.rules.capacity.slots, scheduler.rules.capacity.tokens_per_sequence


def test_kv_slots_and_context_follow_the_settings(bundles: Bundles) -> None:
    assert capacity(bundles, "free", CONFIG) == (4096, 512)
    assert capacity(bundles, "free", replace(CONFIG, kv_slots=1024)) == (1024, 512)
    assert capacity(bundles, "free", replace(CONFIG, kv_slots=100, max_context=90)) == (128, 90)
    assert capacity(bundles, "free", replace(CONFIG, kv_slots=64)) == (64, 65)
    assert capacity(bundles, "fixed", CONFIG) == (112, 113)  # the widest past, in whole blocks


def rehash(folder: Path) -> None:
    """Make the manifest say what the files are now."""
    manifest = load_manifest(folder)
    files = {name: describe_file(folder / name) for name in manifest.files}
    save_manifest(folder, msgspec.structs.replace(manifest, files=files))


def test_a_start_is_logged_stage_by_stage(bundles: Bundles, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stages = ["manifest", "threads", "shapes", "graphs and pool", "step times"]
    with caplog.at_level(logging.DEBUG, "hexserve.worker"):
        assemble(replace(CONFIG, bundle=str(bundles("fixed")))).runtime.close()
    *begun, last = [record.message for record in caplog.records]
    memory = [message for message in begun if message.startswith("memory: ")]
    assert len(memory) == 1 and begun.index(memory[0]) == 4  # before anything is loaded
    begun.remove(memory[0])
    assert begun.pop(1).startswith("weights: fp32; against their floats: top-1 100.0 % (100.0 to 100.0), KL 0.00")
    assert begun == [f"start: {stage}" for stage in stages]
    times = re.fullmatch(r"started in \d+\.\d\d s: (.*)", last)
    assert times is not None
    assert [part.rsplit(" ", 1)[0] for part in times[1].split(", ")] == stages
    caplog.clear()
    for path in bundles("fixed").iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(bytes(len(content)) if path.suffix == ".onnx" else content)
    rehash(tmp_path)
    with caplog.at_level(logging.DEBUG, "hexserve.worker"), pytest.raises(BundleError, match="cannot be loaded"):
        assemble(replace(CONFIG, bundle=str(tmp_path)))
    told = [record.message for record in caplog.records if not record.message.startswith(("memory: ", "weights: "))]
    assert told == [f"start: {stage}" for stage in stages[:4]]


def test_fixed_shapes_decide_the_pool(bundles: Bundles) -> None:
    with pytest.raises(BundleError, match="kv_slots"):
        capacity(bundles, "fixed", replace(CONFIG, kv_slots=64))


def test_deterministic_pins_one_shape(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("fixed"))
    shapes = choose_shapes(manifest, replace(CONFIG, deterministic=True))
    assert shapes.fixed == (StepShape(32, 96),)  # not one row, although that has the widest past
    manifest = load_manifest(bundles("same past"))
    shapes = choose_shapes(manifest, replace(CONFIG, deterministic=True))
    assert shapes.fixed == (StepShape(32, 96),)


def test_a_damaged_weight_is_found_before_it_answers(bundles: Bundles, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(bundles("free"), folder)
    assemble(replace(CONFIG, bundle=str(folder), cost_cache=str(tmp_path / "costs"))).runtime.close()
    weights = folder / "part_1_of_2.data"
    content = bytearray(weights.read_bytes())
    content[1000] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BundleError, match=r"part_1_of_2\.data is damaged: its sha256"):
        assemble(replace(CONFIG, bundle=str(folder), cost_cache=str(tmp_path / "costs")))
