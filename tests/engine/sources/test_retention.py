"""The cache keeps what is used: a bundle that nobody has used for a month goes, unless somebody serves it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.sources import retention
from engine.sources.resolve import COSTS_FOLDER, resolve_bundle
from engine.sources.retention import UNUSED_S, exclusive, in_use, lock_of, mark_used, remove_unused

OLD, USED = "demo-fp32-0123456789abcdef", "demo-fp32-fedcba9876543210"
SERVES = """
import sys
from pathlib import Path
from engine.sources.retention import in_use
with in_use(Path(sys.argv[1]), Path(sys.argv[1]).parent):
    print("serves", flush=True)
    sys.stdin.read()
"""


def make(path: Path) -> Path:
    """A folder that was last used a month and a minute ago."""
    path.mkdir()
    (path / "part.onnx").write_text("x")
    then = time.time() - UNUSED_S - 60
    os.utime(path, (then, then))
    return path


def test_what_was_not_used_for_a_month_is_removed(tmp_path: Path) -> None:
    make(tmp_path / OLD)
    mark_used(make(tmp_path / USED))
    stale = make(tmp_path / f"{OLD}.partial-1")  # of an earlier version, which is not compiled any more
    young = make(tmp_path / f"{OLD}.partial-2")  # perhaps of a container, where its process has this id
    mark_used(young)
    strangers = [make(tmp_path / name) for name in ("notes", COSTS_FOLDER, "demo", "notes.partial-1")]
    remove_unused(tmp_path)
    assert not stale.exists()
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / USED, young, *strangers])


@pytest.mark.parametrize("name", [OLD, f"a[1]{OLD}"])
def test_one_that_is_served_stays_until_its_server_is_gone_however_it_ends(name: str, tmp_path: Path) -> None:
    bundle = make(tmp_path / name)
    command = [sys.executable, "-c", SERVES, str(bundle)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "serves\n"
        with in_use(bundle, tmp_path):  # by a second one, which ends first
            pass
        remove_unused(tmp_path)
        assert (bundle / "part.onnx").exists()
        server.kill()
    remove_unused(tmp_path)
    assert not bundle.exists() and list((tmp_path / "users").iterdir()) == []


def test_one_that_somebody_compiles_stays(tmp_path: Path) -> None:
    bundle = make(tmp_path / OLD)
    with exclusive(lock_of(bundle), lambda: None):
        remove_unused(tmp_path)
    assert bundle.exists()


def test_one_that_is_asked_for_in_the_last_instant_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make(tmp_path / OLD)
    has_users: Callable[[Path], bool] = retention._has_users

    def asked_for(found: Path) -> bool:
        mark_used(found)
        return has_users(found)

    monkeypatch.setattr(retention, "_has_users", asked_for)
    remove_unused(tmp_path)
    assert (bundle / "part.onnx").exists()


def test_using_a_bundle_counts_and_a_new_one_tidies_up(tiny_checkpoint: Path, tmp_path: Path) -> None:
    old = make(tmp_path / OLD)
    bundle = resolve_bundle(str(tiny_checkpoint), tmp_path, "fp32")
    assert not old.exists()
    os.utime(bundle, (0, 0))
    assert resolve_bundle(str(tiny_checkpoint), tmp_path, "fp32") == bundle
    assert time.time() - bundle.stat().st_mtime < UNUSED_S


def test_what_cannot_be_removed_costs_no_start(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / OLD)

    def busy(folder: Path, gone: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(retention, "_remove", busy)
    assert resolve_bundle(str(tiny_checkpoint), tmp_path, "fp32").is_dir()


def test_a_bundle_outside_the_cache_is_nobody_s_to_mark(tmp_path: Path) -> None:
    with in_use(make(tmp_path / "bundle"), tmp_path / "cache"):
        assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
