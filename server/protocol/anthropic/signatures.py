"""What the signature of a thinking block holds: nothing, or the thoughts that the block itself leaves out.

Nothing is signed: what a caller gives back as thoughts is its own text. Thoughts that were left out come back with the
signature, so that the model still has them while it calls tools.
"""

from base64 import b64decode, b64encode
from binascii import Error

UNSIGNED = "unsigned"
_HELD = "held."


def signature_of(thinking: str, is_shown: bool) -> str:
    """The signature of a block with these thoughts, which are in the block itself if they are shown."""
    return UNSIGNED if is_shown else _HELD + b64encode(thinking.encode("utf-8", "replace")).decode()


def thoughts_of(thinking: str, signature: str | None) -> str:
    """The thoughts of a block that came back; "" for one whose signature is of another server."""
    if thinking or signature is None or not signature.startswith(_HELD):
        return thinking
    try:
        return b64decode(signature.removeprefix(_HELD), validate=True).decode("utf-8", "replace")
    except Error:
        return ""
