"""The Grafana dashboard against what /metrics really exports: names, labels, kinds, layout."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.config import EngineConfig
from engine.errors import BusyReason
from engine.messages import Stats
from engine.request import RequestTimings
from server.models.families import ModelCollector
from server.models.loader import BundleLoader
from server.models.models import Models, ServedModel
from server.observability.metrics import Metrics, RequestWatch
from server.settings import Settings
from tests.server.scripted_engine import ScriptedEngine

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "hexserve.json").read_text(encoding="utf-8"))
NAME = re.compile(r"\b(?:(?:hexserve|vllm):[a-z0-9_]+|http_requests[a-z_]*)\b")
SELECTOR = re.compile(rf"({NAME.pattern})(\{{[^}}]*\}})?(\[\$__(?:rate_interval|range)\])?")
# Exported and on no panel, with the reason.
LEFT_OUT = {
    "hexserve:drafted_rows": "the same number as vllm:spec_decode_num_draft_tokens",
    "hexserve:hand_overs": "of models on two devices only",
    "hexserve:accepted_rows": "the same number as vllm:spec_decode_num_accepted_tokens",
}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.fixture(scope="module")
def exported() -> dict[str, tuple[str, str, frozenset[str]]]:
    """Of each sample: its family's name and kind, its labels. Everything has happened once."""
    engine = ScriptedEngine()
    engine.stats = Stats(stages={"plan": 1.0})
    coming = ServedModel(Settings(EngineConfig("unused")), cast("BundleLoader", SimpleNamespace()), engine)
    metrics = Metrics(ModelCollector(Models([coming])))
    metrics.answered("GET", "/metrics", 200)
    metrics.rejected(BusyReason.REQUESTS)
    watch = RequestWatch(metrics, "scripted", 1, 16)
    watch.tokens_arrived(1, watch.tokens_arrived(1, watch.submitted_at))
    watch.finished("stop", RequestTimings(1.0, 2.0, 3.0, 4, 0, 2))
    found: dict[str, tuple[str, str, frozenset[str]]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found[sample.name] = (family.name, family.type, frozenset(sample.labels))
    return found


def test_every_metric_on_it_is_exported(exported: dict[str, Any]) -> None:
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert named - exported.keys() == set() and len(named) > 40
    assert NAME.findall(DASHBOARD["templating"]["list"][1]["query"]["query"])[0] in exported


def test_every_metric_is_on_it_or_left_out_for_a_reason(exported: dict[str, Any]) -> None:
    shown = {exported[name][0] for expression in expressions() for name in NAME.findall(expression)}
    assert {family for family, _, _ in exported.values()} - shown == LEFT_OUT.keys()


def test_labels_exist(exported: dict[str, Any]) -> None:
    for panel in panels():
        for target in panel["targets"]:
            (labels, *others) = {exported[name][2] for name in NAME.findall(target["expr"])}
            assert not others, "labels of one expression are those of all its metrics"
            matched = re.findall(r"[{,](\w+)[=!]~?\"", target["expr"])
            grouped = [name for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for name in group.split(", ")]
            legend = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            assert {*matched, *grouped, *legend} <= labels, target
            assert set(legend) <= {*grouped} or "by (" not in target["expr"], "a legend shows what is grouped by"


def test_counters_are_rates_and_gauges_are_not(exported: dict[str, Any]) -> None:
    for expression in expressions():
        for name, _, window in SELECTOR.findall(expression):
            kind = exported[name][1]
            assert bool(window) == (kind in ("counter", "histogram")), expression
            if window:
                call = re.search(rf"(\w+)\({re.escape(name)}\b", expression)
                assert call is not None and call[1] in ("rate", "increase")
            if kind == "histogram":
                assert name.endswith("_bucket") and re.match(r"histogram_quantile\([\d.]+, sum by \(le\) ", expression)
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")


def test_every_expression_is_of_the_chosen_model_where_its_metric_has_one(exported: dict[str, Any]) -> None:
    for expression in expressions():
        for name, selector, _ in SELECTOR.findall(expression):
            assert ('model_name=~"$model"' in selector) == ("model_name" in exported[name][2]), expression


def rectangles() -> Iterator[tuple[str, set[tuple[int, int]]]]:
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["h"] > 0
        xs, ys = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        yield panel["title"], {(x, y) for x in xs for y in ys}


def test_its_layout() -> None:
    taken: set[tuple[int, int]] = set()
    for title, cells in rectangles():
        assert not taken & cells, f"{title} lies on another panel"
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers) and len(set(titles)) == len(titles)


def test_every_panel_asks_the_chosen_data_source_and_says_what_it_shows() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "model"]
    for panel in panels():
        assert panel["datasource"] == source and panel["description"].endswith(".")
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == [chr(ord("A") + number) for number in range(len(letters))]
        assert {json.dumps(target["datasource"]) for target in panel["targets"]} == {json.dumps(source)}
    assert DASHBOARD["uid"] == "hexserve" and "id" not in DASHBOARD  # Grafana gives the id
