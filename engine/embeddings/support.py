"""Whether a bundle can take a request's embeddings."""

from engine.bundle.embedding_input import embedding_width
from engine.bundle.manifest import Manifest
from engine.errors import InvalidRequest
from engine.request import Request

FLOAT_BYTES = 4


def width_for(manifest: Manifest, param: str) -> int:
    """Numbers of one row; InvalidRequest for a bundle whose graphs begin with token ids."""
    width = embedding_width(manifest)
    if width is None:
        raise InvalidRequest(
            f"'{param}': this bundle's graphs take token ids only; it needs an embedding that is a graph of its own.",
            param,
        )
    return width


def check_embeds(manifest: Manifest, request: Request) -> None:
    """InvalidRequest unless there is a row for every token of the prompt, or none at all."""
    if not request.prompt_embeds:
        return
    wanted = len(request.prompt_ids) * width_for(manifest, "prompt_embeds") * FLOAT_BYTES
    if len(request.prompt_embeds) != wanted:
        raise InvalidRequest(f"'prompt_embeds' has {len(request.prompt_embeds)} bytes, {wanted} are expected.")
