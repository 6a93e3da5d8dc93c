"""Recordings of a speaker of each language with their texts, the prompts of Asterisk: packages of Debian, by apt-get.

Other distributions build such packages again, so what is pinned is what they hold. Licence: CC BY-SA 3.0 (Russian: CC
BY 3.0); their copyright files name who speaks.
"""

import gzip
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
from filelock import FileLock

from engine.sources.names import FetchFailed
from engine.sources.packaged import UnpackFailed, unpack

PACKAGE, TEXTS = "asterisk-core-sounds", "texts.json"
LISTED, SOUNDS = "usr/share/doc/*/core-sounds-*.txt.gz", "usr/share/asterisk/sounds/*_*"
SHA256 = {
    "en": "76d06da07ea834027f5d429524bfa557ccf2cb830eb3ffd60293f9aa58883384",
    "es": "c80c65b01f7cd09165942e2065a16f04858b738214d38d58a4416cb8dccc73db",
    "fr": "90480c03ccd3219ceb070c1233d40b9661d8e7c08547ab14df21f4caa544c3b7",
    "it": "bd3bba142137c822e46bf48b2a76741bef2fdce6a04fd44ea8552d1345a78c0b",
    "ru": "fa1f8924046fb77260af185de119fd0977a0aed98d7e094668374bb2a9218a35",
}
LEAST_S = 4.0  # shorter ones are pieces of sentences
NOT_SAID = frozenset("[](<*#@")  # noises, signs that are read as words


def fetch_recordings(folder: Path, language: str = "en") -> Path:
    """The folder of WAV files, with `TEXTS`, what is said by the name of each. FetchFailed."""
    packages = (f"{PACKAGE}-{language}", f"{PACKAGE}-{language}-wav")
    output = folder.absolute() / packages[0]
    output.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(output.parent / f".{output.name}.lock"), tempfile.TemporaryDirectory() as scratch:
        if not output.exists():
            try:
                unpack(take_recordings, SHA256[language], downloaded(packages, Path(scratch)), output)
            except (UnpackFailed, OSError, subprocess.CalledProcessError) as error:
                raise FetchFailed(f"{' and '.join(packages)} could not be unpacked: {error}") from error
    return output


def downloaded(packages: Sequence[str], folder: Path) -> list[Path]:
    """The files of packages, by apt-get from where it is configured to look. FetchFailed."""
    if missing := [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]:
        raise FetchFailed(f"{packages[0]} comes by apt-get from Debian, and {missing[0]} is missing here")
    for options in ([], _own_lists(folder)):
        if options:  # the system has no lists of packages, or old ones
            _apt_get([*options, "update"], folder)
        said = _apt_get([*options, "download", *packages], folder)
        found = [path for name in packages for path in folder.glob(f"{name}_*.deb")]
        if len(found) == len(packages):
            return found
    raise FetchFailed(f"{packages[0]} could not be fetched by apt-get ({said})")


def _own_lists(folder: Path) -> list[str]:
    """Options that let apt-get keep lists of packages in `folder`, which anybody may."""
    (folder / "lists" / "partial").mkdir(parents=True)
    return [f"-oDir::State::Lists={folder / 'lists'}", f"-oDir::Cache={folder}"]


def _apt_get(arguments: Sequence[str], folder: Path) -> str:
    """Run apt-get; its first error."""
    command = ["apt-get", "--quiet=2", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return next((line for line in done.stderr.splitlines() if line.startswith("E:")), "it left no such file")


def take_recordings(archives: Sequence[Path], pin: str, draft: Path) -> None:
    """Keep the sentences. pin: the SHA-256 of names and contents. A form of `engine.sources.packaged`."""
    draft.mkdir()
    with tempfile.TemporaryDirectory() as whole:
        for path in archives:
            subprocess.run(["dpkg-deb", "--extract", str(path), whole], check=True, capture_output=True)
        ((listed,), (sounds,)) = (Path(whole).glob(pattern) for pattern in (LISTED, SOUNDS))
        texts = dict(_sentences(listed, sounds))
        for name in texts:
            shutil.copyfile(sounds / name, draft / name.replace("/", "-"))
    told = {name.replace("/", "-"): text for name, text in texts.items()}
    (draft / TEXTS).write_bytes(msgspec.json.encode(told, order="sorted"))
    if (found := content_hash(draft)) != pin:
        raise UnpackFailed(f"the recordings have the SHA-256 {found}, not {pin}")


def _sentences(listed: Path, sounds: Path) -> Iterator[tuple[str, str]]:
    """Names of files and what is said in them."""
    for line in gzip.decompress(listed.read_bytes()).decode("utf-8").splitlines():
        name, _, text = line.partition(":")
        path = sounds / f"{name}.wav"
        if path.exists() and text.strip() and not NOT_SAID & set(text) and seconds_of(path) >= LEAST_S:
            yield f"{name}.wav", text.strip()


def seconds_of(path: Path) -> float:
    """The length of a WAV file."""
    with wave.open(str(path)) as file:
        return float(file.getnframes() / file.getframerate())


def content_hash(folder: Path) -> str:
    """The SHA-256 of a folder's files, each its name, a line end and its content, in the order of their names."""
    found = sha256()
    for path in sorted(folder.iterdir()):
        found.update(path.name.encode() + b"\n" + path.read_bytes())
    return found.hexdigest()
