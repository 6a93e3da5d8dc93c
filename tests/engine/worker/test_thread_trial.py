"""Threads: what is tried, what wins, what is remembered, and a real trial in a process of its own."""

import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import FileEntry, Manifest, load_manifest
from engine.bundle.stored_times import ThreadTimes, all_threads
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.worker.settings import LEAST_BYTES
from engine.worker.thread_trial import apart, fastest, resolve_threads, some_graphs, thread_counts
from tests.engine.worker.segmented_runtime import smallest_manifest


class Trial:
    """Tells times of choices as written down, and which were asked for."""

    def __init__(self, *times: ThreadTimes) -> None:
        self.asked: list[tuple[int, bool]] = []
        self._times = {(one.threads, one.spins): one for one in times}

    def __call__(self, threads: int, spins: bool) -> ThreadTimes:
        self.asked.append((threads, spins))
        return self._times[threads, spins]


@pytest.fixture
def large(segmented_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """As if it had another file, which is not looked for."""
    monkeypatch.setattr("engine.worker.thread_trial.check_files", lambda *_: None)
    manifest = load_manifest(segmented_bundle)
    return msgspec.structs.replace(manifest, files={**manifest.files, "some.data": FileEntry(LEAST_BYTES, "")})


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.worker.thread_trial.usable_cores", lambda: 4)
    monkeypatch.setattr("engine.worker.thread_trial.processor_name", lambda: "Oryon")


def settings(cache: Path, **changes: object) -> EngineConfig:
    return EngineConfig(bundle="", cost_cache=str(cache), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cores", "asked", "counts"), [(1, 0, (1,)), (2, 0, (2,)), (3, 0, (3, 2)), (12, 0, (12, 9, 6)), (12, 5, (5,))]
)
def test_what_is_tried(cores: int, asked: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(cores, asked) == counts


def test_another_choice_wins_where_it_is_a_twentieth_faster_at_few_and_many_rows_together() -> None:
    usual = ThreadTimes(4, True, 10.0, 40.0)
    level, faster = ThreadTimes(3, True, 9.6, 39.0), ThreadTimes(2, True, 8.0, 44.0)
    assert fastest([usual, level]) == usual
    assert fastest([usual, level, faster]) == faster


def test_the_winner_is_remembered_with_all_that_was_tried(large: Manifest, tmp_path: Path) -> None:
    slow, best, worst = (ThreadTimes(count, True, ms, ms) for count, ms in ((4, 9.0), (3, 5.0), (2, 12.0)))
    sleeping = ThreadTimes(3, False, 5.1, 5.1)
    trial = Trial(slow, best, worst, sleeping)
    config = resolve_threads(tmp_path, large, settings(tmp_path), trial)
    assert (config.threads, config.spin) == (3, "on")
    assert trial.asked == [(4, True), (3, True), (2, True), (3, False)]
    (stored,) = all_threads(tmp_path)
    assert (stored.tried, stored.processor, stored.cores) == ((slow, best, worst, sleeping), "Oryon", 4)
    assert resolve_threads(tmp_path, large, settings(tmp_path), Trial()) == config


def test_threads_sleep_where_that_is_faster(large: Manifest, tmp_path: Path) -> None:
    trial = Trial(ThreadTimes(2, True, 9.0, 9.0), ThreadTimes(2, False, 6.0, 6.0))
    config = resolve_threads(tmp_path, large, settings(tmp_path, threads=2), trial)
    assert (config.threads, config.spin) == (2, "off")


@pytest.mark.parametrize("changes", [{"spin": "on"}, {"spin": "off"}, {"deterministic": True}])
def test_nothing_is_tried_where_it_is_settled(changes: dict[str, object], large: Manifest, tmp_path: Path) -> None:
    config = settings(tmp_path, **changes)
    assert resolve_threads(tmp_path, large, config, Trial()) == config


def test_nothing_is_tried_for_small_models_or_without_a_cache(large: Manifest, tmp_path: Path) -> None:
    assert resolve_threads(tmp_path, smallest_manifest(), config := settings(tmp_path), Trial()) == config
    assert resolve_threads(tmp_path, large, config := EngineConfig(bundle=""), Trial()) == config


def test_what_was_disturbed_is_thrown_away_and_tried_again(
    large: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def disturbed(threads: int, spins: bool) -> ThreadTimes:
        return ThreadTimes(threads, spins, 5.0, 5.0, others=next(shares))

    shares = iter([0.4, 0.3, 0.2])
    config = settings(tmp_path, threads=2)
    assert resolve_threads(tmp_path, large, config, disturbed) == config
    assert "threads are tried again at the next start: other programs used 20% of the processor" in caplog.text
    assert next(shares, None) is None and all_threads(tmp_path) == []
    shares = iter([0.4, 0.15, 0.5, 0.16, 0.0])
    assert resolve_threads(tmp_path, large, config, disturbed).spin == "on"
    assert len(all_threads(tmp_path)) == 1


def test_a_folder_that_takes_no_file_stops_nothing(
    large: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    trial = Trial(ThreadTimes(2, True, 5.0, 5.0), ThreadTimes(2, False, 5.0, 5.0))
    assert resolve_threads(tmp_path, large, settings(tmp_path / "file", threads=2), trial).threads == 2
    assert "what was tried of threads cannot be remembered" in caplog.text


def test_a_real_trial(
    large: Manifest, segmented_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = apart(segmented_bundle)(1, False)
    assert (found.threads, found.spins) == (1, False) and 0 < found.few_ms < found.many_ms
    caplog.set_level(logging.INFO)
    resolve_threads(segmented_bundle, large, settings(tmp_path, threads=1))
    assert "threads: 1 that s" in caplog.text or "other programs used" in caplog.text


def test_a_bundle_that_does_not_open_says_why(
    large: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path)
    assert resolve_threads(tmp_path, large, config) == config
    assert "threads are tried again at the next start: the process exited with status 1: " in caplog.text
    assert "manifest.json" in caplog.text


def test_graphs_of_whole_layers_until_a_processor_can_hold_them_no_more(large: Manifest) -> None:
    linear = [graph.name for graph in large.graphs if graph.name.startswith("linear")]
    assert [graph.name for graph in some_graphs(large)] == linear[1:-1]
    data = next(name for name in large.files if name.startswith("linear"))
    heavy = msgspec.structs.replace(large, files={**large.files, data: FileEntry(10**9, "")})
    assert [graph.name for graph in some_graphs(heavy)] == linear[1:2]


def test_nothing_of_a_damaged_bundle_is_opened(
    segmented_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.worker.settings.LEAST_BYTES", 1)
    shutil.copytree(segmented_bundle, bundle := tmp_path / "bundle")
    data = bundle / "linear.data"
    data.write_bytes(bytes(data.stat().st_size))
    trial = Trial()
    with pytest.raises(BundleError, match=r"linear\.data"):
        resolve_threads(bundle, load_manifest(bundle), settings(tmp_path / "cache"), trial)
    assert trial.asked == []
