"""Atomic output: no reader ever meets half a bundle."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.bundle.manifest import Manifest, load_manifest, verify_hashes
from engine.compile.arguments import CompileArguments
from engine.errors import CompileError
from engine.sources import publish
from engine.sources.publish import staged_folder
from tests.engine.compile.arguments_json import encode_arguments

Build = Callable[..., tuple[Path, Manifest]]

# Compiles, and stops for ever before the weights of the head, after saying so.
STALLED = """
import sys, time
from pathlib import Path
from engine.compile.quantisation import packer as weights
from engine.compile.arguments import CompileArguments, Layout
from engine.compile.__main__ import run_compiler

def stall(self, file, is_table):
    print("stalled", flush=True)
    time.sleep(600)

weights.WeightPacker._head = stall
run_compiler(CompileArguments(Path(sys.argv[1]), Path(sys.argv[2]), layout=Layout.POOL))
"""


def test_a_killed_compile_leaves_nothing_and_the_next_cleans_up(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle: no bundle at the output; the next run removes the dead one's folder."""
    output = tmp_path / "bundle"
    command = [sys.executable, "-c", STALLED, str(tiny_checkpoint), str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "stalled\n"
        partial = output.with_name(f"bundle.partial-{process.pid}")
        assert (partial / "part_1_of_2.data").stat().st_size > 0
        process.send_signal(signal.SIGKILL)
    assert not output.exists() and partial.exists()
    arguments = encode_arguments(CompileArguments(tiny_checkpoint, output))
    subprocess.run([sys.executable, "-m", "engine.compile", arguments], check=True, stderr=subprocess.DEVNULL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]
    assert verify_hashes(output, load_manifest(output)) == []


FULL_DISK = """
import resource, sys
from pathlib import Path
from engine.compile.arguments import CompileArguments
from engine.compile.__main__ import run_compiler
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
sys.exit(run_compiler(CompileArguments(Path(sys.argv[1]), Path(sys.argv[2]))))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_disk_that_refuses(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A write that fails is one sentence, and nothing is left."""
    command = [sys.executable, "-c", FULL_DISK, str(tiny_checkpoint), str(tmp_path / "bundle")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "bundle failed: File too large" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr and list(tmp_path.iterdir()) == []


def test_an_existing_output_is_refused_unless_forced(tiny_checkpoint: Path, build: Build, tmp_path: Path) -> None:
    """Without --force nothing is touched; with it the old bundle is replaced as a whole."""
    output = tmp_path / "out"
    output.mkdir()
    (output / "precious").write_text("x")
    for force, message in ((False, "--force replaces"), (True, "is not a bundle")):
        with pytest.raises(CompileError, match=message), staged_folder(output, force=force):
            pytest.fail("never entered")
    (output / "manifest.json").write_text("{}")
    with pytest.raises(CompileError, match="--force replaces"), staged_folder(output, force=False):
        pytest.fail("never entered")
    with staged_folder(output, force=True) as folder:
        (folder / "new").write_text("y")
        assert (output / "precious").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in output.iterdir()] == ["new"]


def test_an_error_leaves_the_old_bundle(tmp_path: Path) -> None:
    """A stage that raises takes its folder with it."""
    output = tmp_path / "out"
    output.mkdir()
    with pytest.raises(CompileError, match="broken"), staged_folder(output, force=True) as folder:
        (folder / "half").write_text("x")
        raise CompileError("broken")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_rename_puts_the_old_bundle_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step aside is undone."""
    output = tmp_path / "out"
    output.mkdir()
    (output / "manifest.json").write_text("x")
    rename = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(CompileError, match="No space left"), staged_folder(output, force=True) as folder:
        (folder / "new").write_text("y")
    assert (output / "manifest.json").exists()


def test_what_an_earlier_process_with_our_id_left_is_in_nobody_s_way(tmp_path: Path) -> None:
    """Ids are used again: in a restarted container ours is that of the one that was killed."""
    (tmp_path / f"out.partial-{os.getpid()}" / "half").mkdir(parents=True)
    (tmp_path / f"out.replaced-{os.getpid()}").mkdir()
    with staged_folder(tmp_path / "out", force=False) as folder:
        assert list(folder.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_faster_neighbour_s_folder_stays_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both when it is there before the rename, and when it comes between the look and the rename."""
    output = tmp_path / "out"
    for is_late in (False, True):
        for replaces in (lambda found: False, publish.refuse):
            with publish.draft_beside(output) as draft:
                (draft / "ours").touch()
                neighbour = output if not is_late else tmp_path / "late"
                neighbour.mkdir()
                (neighbour / "theirs").touch()
                if is_late:
                    monkeypatch.setattr(Path, "replace", late(neighbour, output))
                refused = pytest.raises(FileExistsError) if replaces is publish.refuse else contextlib.nullcontext()
                with refused:
                    publish.publish(draft, output, replaces)
                monkeypatch.undo()
            assert [path.name for path in tmp_path.iterdir()] == ["out"]
            assert [path.name for path in output.iterdir()] == ["theirs"]
            shutil.rmtree(output)


def late(neighbour: Path, output: Path) -> Callable[[Path, Path], Path]:
    """A rename before which another process's folder arrives."""
    rename = Path.replace

    def replace(self: Path, target: Path) -> Path:
        rename(neighbour, output)
        return rename(self, target)

    return replace


def test_living_neighbours_are_left_alone(tmp_path: Path) -> None:
    """Only folders whose owner is dead are removed."""
    alive, dead = tmp_path / f"out.partial-{os.getppid()}", tmp_path / "out.partial-999999999"
    other = tmp_path / "outer.partial-999999999"
    for folder in (alive, dead, other):
        folder.mkdir()
    publish.remove_stale(tmp_path / "out")
    assert alive.exists() and not dead.exists() and other.exists()


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    """A file where a folder has to be: one sentence."""
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(CompileError, match="cannot write beside"),
        staged_folder(tmp_path / "file" / "out", force=False),
    ):
        pytest.fail("never entered")
