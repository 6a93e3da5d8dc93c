"""Packages of Debian: what is taken of them, and how it fails."""

import gzip
import re
import shutil
import subprocess
import wave
from pathlib import Path

import pytest

from engine.sources.names import FetchFailed
from engine.sources.packaged import UnpackFailed, unpack
from tools.real_models import debian
from tools.real_models.debian import content_hash, downloaded, fetch_recordings, take_recordings

LISTED, SOUNDS = "usr/share/doc/asterisk-core-sounds-fr/core-sounds-fr.txt.gz", "usr/share/asterisk/sounds/fr_CA_f_June"
LINES = "; A list\n\nlong: One: two.\nsub/other:  Three.\nshort: No.\nnoise: [a beep]\nnowhere: Missing.\nsilent: \n"
SECONDS = {"long": 4.5, "sub/other": 5.0, "short": 1.0, "noise": 5.0, "silent": 5.0}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """As dpkg-deb makes one."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("packages of Debian are made and read by dpkg-deb")
    whole = tmp_path / "whole"
    for name in (LISTED, *(f"{SOUNDS}/{name}.wav" for name in SECONDS), "DEBIAN/control"):
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
    (whole / LISTED).write_bytes(gzip.compress(LINES.encode()))
    for name, seconds in SECONDS.items():
        with wave.open(str(whole / SOUNDS / f"{name}.wav"), "wb") as out:
            out.setparams((1, 2, 100, 0, "NONE", "none"))
            out.writeframes(bytes(int(200 * seconds)))
    (whole / "DEBIAN" / "control").write_text(
        "Package: thing\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <n@example.org>\nDescription: None\n"
    )
    file = tmp_path / "thing_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(whole), str(file)], check=True, capture_output=True)
    return file


def test_sentences_are_kept_with_their_texts(package: Path, tmp_path: Path) -> None:
    with pytest.raises(UnpackFailed, match=r"have the SHA-256 \w{64}, not abc") as told:
        unpack(take_recordings, "abc", [package], tmp_path / "found")
    assert not (tmp_path / "found").exists()
    pin = re.findall(r"\w{64}", str(told.value))[0]
    unpack(take_recordings, pin, [package], tmp_path / "found")
    assert sorted(file.name for file in (tmp_path / "found").iterdir()) == ["long.wav", "sub-other.wav", "texts.json"]
    assert (tmp_path / "found" / "texts.json").read_text() == '{"long.wav":"One: two.","sub-other.wav":"Three."}'
    assert content_hash(tmp_path / "found") == pin
    (tmp_path / "found" / "long.wav").write_bytes(b"other")
    assert content_hash(tmp_path / "found") != pin


def test_a_package_that_cannot_be_had_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", {"dpkg-deb": "/bin/dpkg-deb"}.get)
    with pytest.raises(FetchFailed, match="comes by apt-get from Debian, and apt-get is missing here"):
        fetch_recordings(tmp_path)
    monkeypatch.setattr(shutil, "which", str)
    said = "E: Unable to locate package thing\n"
    done = subprocess.CompletedProcess(["apt-get"], 100, "", said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(FetchFailed, match=r"thing could not be fetched by apt-get \(E: Unable to locate package thing"):
        downloaded(["thing"], tmp_path)


def test_without_lists_of_packages_it_fetches_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[2:])
        is_listed = f"-oDir::State::Lists={tmp_path / 'lists'}" in command and (tmp_path / "lists/partial").is_dir()
        if is_listed and "download" in command:
            (tmp_path / "thing_1_all.deb").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.setattr(subprocess, "run", run)
    assert downloaded(["thing"], tmp_path) == [tmp_path / "thing_1_all.deb"]
    assert [words[-1] for words in asked] == ["thing", "update", "thing"]


def test_what_is_there_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "downloaded", lambda *_: pytest.fail("it is there"))
    for language in debian.SHA256:
        (tmp_path / f"asterisk-core-sounds-{language}").mkdir()
        assert fetch_recordings(tmp_path, language) == tmp_path / f"asterisk-core-sounds-{language}"
