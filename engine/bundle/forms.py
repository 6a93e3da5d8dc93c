"""The form that a tensor must have: its type and its shape, of which free axes have names."""

from collections.abc import Sequence

from engine.bundle.manifest import GraphSpec, TensorSpec
from engine.errors import BundleError

Form = tuple[str, tuple[int | str, ...]]  # type, "" = any; shape, where axes of length 1 do not count

FREE_ROWS, FREE_LOGIT_ROWS, FREE_CONTEXT, FREE_PAST = "rows", "logit_rows", "context", "past"
FREE_COLUMNS = "columns"


def check_form(spec: GraphSpec, side: str, tensor: TensorSpec, wanted: Form | None) -> None:
    """BundleError when a tensor has another form; None = any will do."""
    if wanted is None:
        return
    dtype, shape = wanted
    if (dtype and dtype != tensor.dtype) or _long(tensor.shape) != _long(shape):
        raise BundleError(
            f"graph {spec.name} {side} {tensor.name} is {tensor.dtype} {list(tensor.shape)} in the manifest, whose "
            f"rows, context and model want {dtype or 'numbers'} {list(shape)}"
        )


def _long(shape: Sequence[int | str]) -> list[int | str]:
    return [size for size in shape if size != 1]
