"""Shapes and sizes from settings, without loading a graph."""

from dataclasses import replace

import pytest

from engine.assembly import choose_shapes, make_scheduler
from engine.bundle.manifest import load_manifest
from engine.bundle.variant import PassShape
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.scheduling.costs import CostTable
from tests.bundles import Bundles

CONFIG = EngineConfig(bundle="")


def capacity(bundles: Bundles, layout: str, config: EngineConfig) -> tuple[int, int]:
    manifest = load_manifest(bundles(layout))
    scheduler = make_scheduler(manifest, config, choose_shapes(manifest, config), CostTable({}))
    return scheduler.rules.capacity.columns, scheduler.rules.capacity.tokens_per_sequence


def test_pool_columns_and_context_follow_the_settings(bundles: Bundles) -> None:
    assert capacity(bundles, "free", CONFIG) == (4096, 512)
    assert capacity(bundles, "free", replace(CONFIG, pool_columns=1024)) == (1024, 512)
    assert capacity(bundles, "free", replace(CONFIG, pool_columns=100, max_context=90)) == (128, 90)
    assert capacity(bundles, "free", replace(CONFIG, pool_columns=64)) == (64, 65)
    assert capacity(bundles, "fixed", CONFIG) == (112, 113)  # the widest past, in whole pages


def test_fixed_shapes_decide_the_pool(bundles: Bundles) -> None:
    with pytest.raises(BundleError, match="pool_columns"):
        capacity(bundles, "fixed", replace(CONFIG, pool_columns=64))


def test_deterministic_pins_one_shape(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("fixed"))
    shapes = choose_shapes(manifest, replace(CONFIG, deterministic=True))
    assert shapes.fixed == (PassShape(32, 96),)  # not one row, although that has the widest past
    manifest = load_manifest(bundles("same past"))
    shapes = choose_shapes(manifest, replace(CONFIG, deterministic=True))
    assert shapes.fixed == (PassShape(32, 96),)
