"""A source becomes a bundle folder: named, cached, compiled once, by a process of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from gguf.constants import GGMLQuantizationType

from engine.bundle import weight_files as hashes
from engine.bundle.manifest import load_manifest
from engine.demo.location import SHIPPED
from engine.errors import BundleError
from engine.sources import resolve
from engine.sources.resolve import bundle_key, cache_folder, compiler_stamps, default_cache, resolve_bundle
from tests.engine.compile.sources.gguf.gguf_files import write_gguf
from tests.tiny_encoder import write_encoder

RESOLVE = "import sys; from pathlib import Path; from engine.sources.resolve import resolve_bundle as r; "


def test_a_bundle_is_itself(free_bundle: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    assert resolve_bundle(str(free_bundle), tmp_path / "cache") == free_bundle
    assert not (tmp_path / "cache").exists()


def test_a_checkpoint_is_compiled_once(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds the first one's bundle; a damaged one is made again."""
    folder = resolve_bundle(str(tiny_checkpoint), tmp_path, "fp32")
    assert load_manifest(folder).name == "tiny" and load_manifest(folder).quant == "fp32"
    assert [path.name for path in tmp_path.iterdir() if path.name != "costs"] == [folder.name]
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
        assert resolve_bundle(str(tiny_checkpoint), tmp_path, "fp32") == folder
    for name in (min(path.name for path in folder.glob("*.data")), "manifest.json"):
        (folder / name).unlink()
        assert resolve_bundle(str(tiny_checkpoint), tmp_path, "fp32") == folder
        assert (folder / name).is_file()


def test_a_small_encoder_stays_float(tmp_path: Path) -> None:
    write_encoder(tmp_path / "tiny")
    manifest = load_manifest(resolve_bundle(str(tmp_path / "tiny"), tmp_path / "cache"))
    assert (manifest.quant, manifest.name) == ("fp32", "tiny")
    assert manifest.parity["cosine"] > 0.9999


def test_a_gguf_file_is_compiled_once(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its file name; another file of that name is another model."""
    path = write_gguf(tiny_checkpoint, tmp_path / "small.Q8_0.gguf", GGMLQuantizationType.Q8_0)
    folder = resolve_bundle(str(path), tmp_path / "cache")
    assert (load_manifest(folder).name, load_manifest(folder).quant) == ("small.Q8_0", "keep")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
        assert resolve_bundle(str(path), tmp_path / "cache") == folder
    write_gguf(tiny_checkpoint, path, GGMLQuantizationType.F16)
    assert resolve_bundle(str(path), tmp_path / "cache") != folder


def test_a_damaged_gguf_file_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The compiler's own message is on stderr; no lock stays."""
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(9))
    with pytest.raises(BundleError, match="could not be compiled"):
        resolve_bundle(str(tmp_path / "bad.gguf"), tmp_path / "cache")
    assert "bad.gguf is GGUF of version 0" in capfd.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_at_once_compile_once(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Both get the bundle, only one compiler ran."""
    code = RESOLVE + "print(r(sys.argv[1], Path(sys.argv[2])))"
    command = [sys.executable, "-c", code, str(tiny_checkpoint), str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [process.communicate() for process in started]
    assert results[0][0] == results[1][0] != ""
    assert sum("parity" in errors for _, errors in results) == 1


def test_serving_loads_no_compiler(free_bundle: Path, tmp_path: Path) -> None:
    """Importing and resolving brings in neither onnx nor torch."""
    code = (
        RESOLVE + "r(sys.argv[1], Path(sys.argv[2])); print([m for m in ('onnx', 'torch', 'gguf') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(free_bundle), str(tmp_path)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "onnx" not in loaded and "torch" not in loaded and "gguf" not in loaded


@pytest.mark.parametrize("name", ["demo", "demo-diffusion"])
def test_the_demo_is_a_float_bundle(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A shipped model is named like this; here the tiny checkpoint stands for it."""
    monkeypatch.setattr(resolve, "SHIPPED", {name: lambda: tiny_checkpoint})
    manifest = load_manifest(resolve_bundle(name, tmp_path))
    assert (manifest.name, manifest.quant) == (name, "fp32")


def test_the_names_of_shipped_models_are_those_of_their_folders() -> None:
    assert {name: folder().name for name, folder in SHIPPED.items()} == {
        "demo": "model",
        "demo-diffusion": "diffusion_model",
        "demo-vision": "vision_model",
    }


def test_a_dead_owners_lock_is_taken_over(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A crash must not block every later start."""
    key = bundle_key(tiny_checkpoint, ("int8", "tiny"))
    lock = tmp_path / f"tiny-int8-{key}.lock"
    lock.write_text("999999999")
    assert resolve_bundle(str(tiny_checkpoint), tmp_path).is_dir()
    assert not lock.exists()


def test_a_lock_file_of_a_process_that_is_gone_blocks_no_start(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a process that lives: its id was given to another one, in a restarted container to ourselves."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waits for nobody"))
    key = bundle_key(tiny_checkpoint, ("int8", "tiny"))
    (tmp_path / f"tiny-int8-{key}.lock").write_text(str(os.getpid()))
    folder = resolve_bundle(str(tiny_checkpoint), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "costs"] == [folder.name]


def test_who_waits_for_another_compilation_says_so_once(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    key = bundle_key(tiny_checkpoint, ("int8", "tiny"))
    code = "import sys; from pathlib import Path; from engine.sources.retention import exclusive; "
    code += "lock = exclusive(Path(sys.argv[1]), print); lock.__enter__(); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / f"tiny-int8-{key}.lock")]
    say = resolve._say_waiting
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        monkeypatch.setattr(resolve, "_say_waiting", lambda name: (say(name), other.kill()))
        assert resolve_bundle(str(tiny_checkpoint), tmp_path).is_dir()
    assert capfd.readouterr().err.count("another process compiles tiny already: waiting until it is done\n") == 1


def test_a_failed_compilation_is_one_sentence(tmp_path: Path) -> None:
    """The compiler's own message is on stderr; no lock stays."""
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{}")
    with pytest.raises(BundleError, match="could not be compiled"):
        resolve_bundle(str(tmp_path / "bad"), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [("nothing", "does not exist"), ("file", "is a file"), ("folder", "neither a bundle .* nor a checkpoint")],
)
def test_other_sources_are_refused(make: str, message: str, tmp_path: Path) -> None:
    """A sentence says what can be named."""
    path = tmp_path / "thing"
    if make == "file":
        path.write_text("x")
    elif make == "folder":
        path.mkdir()
    with pytest.raises(BundleError, match=message) as caught:
        resolve_bundle(str(path), tmp_path / "cache")
    assert make == "folder" or str(caught.value).endswith(", 'demo' or 'demo-diffusion' or 'demo-vision'")


def test_the_key_follows_the_files(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Other arguments or another file make another bundle."""
    (tmp_path / "config.json").write_text("{}")
    first = bundle_key(tmp_path, ("--quant", "int4"))
    assert bundle_key(tmp_path, ("--quant", "int4")) == first
    assert bundle_key(tmp_path, ("--quant", "int8")) != first
    (tmp_path / "config.json").write_text("{ }")
    changed = bundle_key(tmp_path, ("--quant", "int4"))
    assert changed != first
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{}")
    with_part = bundle_key(tmp_path, ("--quant", "int4"))
    assert with_part != changed
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("t")
    assert bundle_key(tmp_path, ("--quant", "int4")) != with_part


@pytest.mark.parametrize("file", ["compile/npu/a.py", "compile/b.py", "models/c.py", "bundle/d.py"])
def test_the_key_follows_the_compiler(file: str, tmp_path: Path) -> None:
    """Any Python file of it, however deep; caches of the interpreter do not count."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("before")
    first = compiler_stamps(tmp_path)
    (path.parent / "__pycache__").mkdir()
    (path.parent / "__pycache__" / "made.pyc").write_text("x")
    assert compiler_stamps(tmp_path) == first
    path.write_text("after it")
    assert compiler_stamps(tmp_path) != first
    assert [name for name, _, _ in first] == [file]


def test_an_unusable_cache(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A file in its place: one sentence."""
    (tmp_path / "cache").write_text("x")
    with pytest.raises(BundleError, match="cannot be used"):
        resolve_bundle(str(tiny_checkpoint), tmp_path / "cache")


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "hexserve/bundles"),
        ("win32", "LOCALAPPDATA", "hexserve/bundles"),
    ],
)
def test_cache_folder(
    platform: str, variable: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform's own place."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, str(tmp_path))
    assert default_cache() == tmp_path / expected


def test_no_home_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that no file of accounts has, as in a container; a stranger's home that does not exist."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(BundleError, match="no home folder: name a folder for the cache with cache_dir"):
        cache_folder("")
    with pytest.raises(BundleError, match="~no-such-account/cache names a home folder that does not exist"):
        cache_folder("~no-such-account/cache")
    with pytest.raises(BundleError, match="~no-such-account/bundle names a home folder that does not exist"):
        resolve_bundle("~no-such-account/bundle", Path("unused"))
    assert cache_folder("/somewhere") == Path("/somewhere")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "the compiler wrote no bundle|has no manifest.json"),
        ('{"parity": {"kl": null}}', "manifest.json cannot be read"),
    ],
)
def test_what_a_compiler_wrote_is_checked_even_when_it_ends_well(
    manifest: str | None, message: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiles(command: list[str], **_: object) -> SimpleNamespace:
        if manifest is not None:
            output = Path(json.loads(command[-1])["output"])
            output.mkdir()
            (output / "manifest.json").write_text(manifest)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", compiles)
    with pytest.raises(BundleError, match=message):
        resolve_bundle(str(tiny_checkpoint), tmp_path)


def test_what_was_compiled_just_now_is_not_hashed_again(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve_bundle(str(tiny_checkpoint), tmp_path)
    monkeypatch.setattr(hashes, "verify_hashes", lambda *_: pytest.fail("read again"))
    hashes.check_once(folder, load_manifest(folder), tmp_path / "costs")
