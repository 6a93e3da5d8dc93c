"""Whether two bundles have the same tokens: otherwise one could not guess for the other."""

from pathlib import Path
from typing import Any

import msgspec

from engine.bundle.manifest import Manifest
from engine.errors import BundleError
from engine.files.opening import TOKENIZER_BYTES, read_bytes, shown

Vocabulary = dict[int, str]  # text by id


def check_same_tokens(folder: Path, manifest: Manifest, draft_folder: Path, draft: Manifest) -> None:
    """BundleError naming the first id that stands for something else; files of the same content are not parsed."""
    ours, theirs = (one.files.get(one.text.tokenizer) for one in (manifest, draft))
    if ours is not None and ours == theirs:
        return
    served, guessed = _vocabulary(folder / manifest.text.tokenizer), _vocabulary(draft_folder / draft.text.tokenizer)
    if draft.diffusion is not None and draft.diffusion.mask_token not in served:
        guessed.pop(draft.diffusion.mask_token, None)  # it is never proposed
    if served == guessed:
        return
    token = min(token for token in served.keys() | guessed.keys() if served.get(token) != guessed.get(token))
    raise BundleError(
        f"draft: {draft.name} has other tokens than {manifest.name}: {token} is {_told(guessed, token)} there and "
        f"{_told(served, token)} here; a draft model must have the tokenizer of the model that it guesses for"
    )


def _vocabulary(path: Path) -> Vocabulary:
    try:
        content = msgspec.json.decode(read_bytes(path, TOKENIZER_BYTES), type=dict[str, Any])
        tokens = content["model"]["vocab"]
        # A mapping of byte pair encodings, a list of [text, score] of unigram models.
        pairs = tokens.items() if isinstance(tokens, dict) else [(text, at) for at, (text, *_) in enumerate(tokens)]
        added = [(token["content"], token["id"]) for token in content.get("added_tokens") or ()]
        return {int(token): str(text) for text, token in (*pairs, *added)}
    except OSError as error:
        raise BundleError(f"draft: {path} cannot be read: {shown(error)}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError):
        raise BundleError(f"draft: {path} is no tokenizer.json whose tokens can be compared") from None


def _told(vocabulary: Vocabulary, token: int) -> str:
    return repr(vocabulary[token])[:40] if token in vocabulary else "no token"
