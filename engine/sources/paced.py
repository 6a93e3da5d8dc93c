"""A bundle folder for a model whose graphs nobody has: text files of another bundle, and a manifest of its shapes."""

import hashlib
import shutil
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import msgspec

from engine.bundle.manifest import FileEntry, Manifest, TextSpec, describe_file, load_manifest, save_manifest
from engine.demo.location import DEMO
from engine.errors import BundleError
from engine.files.opening import TOKENIZER_BYTES, read_bytes
from engine.simulate.geometry import GEOMETRY
from engine.simulate.paced_manifest import paced_manifest
from engine.simulate.published import Published, named
from engine.sources.converted import is_good
from engine.sources.publish import draft_beside, publish

SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo")


def published_as(name: str) -> Published:
    """The published pass times that `device/model` names. BundleError that lists what there is."""
    try:
        return named(name)
    except ValueError as error:
        raise BundleError(f"paced: {error}") from None


def paced_folder(name: str, source: str, bundle: Path, cache: Path) -> Path:
    """The bundle to serve at the pace of `device/model`.

    source, bundle: what the user named, and its folder. The demo lends its text to a model of the published geometry;
    any other bundle is taken with its own graphs' shapes, and refused when it is no NPU bundle of that model.
    """
    published = published_as(name)
    manifest = load_manifest(bundle)
    if source != DEMO:
        _check_is_model(source, manifest, published)
        return bundle
    tokenizer = read_bytes(bundle / manifest.text.tokenizer, TOKENIZER_BYTES)
    geometry = GEOMETRY[published.model]
    widened = widened_tokenizer(tokenizer, geometry.vocab)
    described = msgspec.json.encode(paced_manifest(published, geometry, manifest.text, {}))
    key = hashlib.sha256(widened + described).hexdigest()[:16]
    target = cache / f"paced-{name.lower().replace('/', '-')}-{key}"
    if is_good(target):
        return target
    try:
        with draft_beside(target) as draft:
            files = _write_text(draft, bundle, manifest.text, widened)
            save_manifest(draft, paced_manifest(published, geometry, manifest.text, files))
            publish(draft, target, replaces=lambda found: not is_good(found))
    except OSError as error:
        raise BundleError(f"the bundle cache {cache} cannot be used: {error.strerror or error}") from error
    return target


def _write_text(draft: Path, bundle: Path, text: TextSpec, tokenizer: bytes) -> dict[str, FileEntry]:
    """The text files of a bundle with another tokenizer, and what the manifest says of them."""
    names = [text.tokenizer]
    (draft / text.tokenizer).write_bytes(tokenizer)
    if text.chat_template is not None:
        shutil.copyfile(bundle / text.chat_template, draft / text.chat_template)
        names.append(text.chat_template)
    return {each: describe_file(draft / each) for each in names}


def widened_tokenizer(serialized: bytes, vocab: int) -> bytes:
    """A byte-level tokenizer.json whose ids reach `vocab`: each new one is a word of its own that no text has.

    So every id that noise gives has a text, and grammars see a vocabulary of the model's width.
    """
    document: dict[str, Any] = msgspec.json.decode(serialized)
    entries: dict[str, int] = document["model"]["vocab"]
    for added in document["added_tokens"]:  # outside the model's own vocabulary they would be numbered anew
        entries.setdefault(added["content"], added["id"])
    taken = set(entries.values())
    free = [identifier for identifier in range(vocab) if identifier not in taken]
    words = (word for word in _words() if word not in entries)
    entries.update({word: identifier for identifier, word in zip(free, words, strict=False)})
    return msgspec.json.encode(document)


def _words() -> Iterator[str]:
    for length in count(3):
        for syllables in product(SYLLABLES, repeat=length):
            yield "Ġ" + "".join(syllables)


def _check_is_model(source: str, manifest: Manifest, published: Published) -> None:
    if manifest.is_free_shape:
        raise BundleError(
            f"{source} has graphs of free shapes, which no NPU runs: leave it out to keep the pace of {published.title}"
        )
    if manifest.kv_bytes_per_token != published.kv_bytes:
        raise BundleError(
            f"{source} is not {published.model}: its caches take {manifest.kv_bytes_per_token} bytes a token, "
            f"those of {published.model} {published.kv_bytes}; leave it out to keep the pace of {published.title}"
        )
