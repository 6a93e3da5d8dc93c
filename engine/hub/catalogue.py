"""Where a model's ready X Elite bundle lies, asked of Qualcomm's own package `qai_hub_models_cli` (extra `hub`)."""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from engine.errors import HexserveError

PACKAGE = "qai_hub_models_cli"
RUNTIME = "genie"
X_ELITE = "qualcomm-snapdragon-x-elite"
PRECISIONS = ("w4a16", "w4")
_LONGEST_REASON = 300


class PullError(HexserveError):
    """A bundle cannot be fetched; the message is one sentence."""


def find_bundle(name: str, chipset: str = X_ELITE, precisions: Sequence[str] = PRECISIONS) -> str:
    """URL of the model's bundle in the first precision that is published.

    Raises PullError when the package is missing or too old, the network is down, or there is no such bundle.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise PullError("fetching bundles needs Qualcomm's catalogue: pip install 'hexserve[hub]'")
    fetch, expected = _catalogue()
    reason: Exception | None = None
    for precision in precisions:
        try:
            return _ask(fetch, name, chipset, precision)
        except expected as error:  # a wrong name, or nothing published: OSErrors of the network are not among these
            reason = error
        except OSError as error:
            raise PullError(f"the catalogue of Qualcomm AI Hub cannot be reached: {_first_line(error)}") from error
    raise PullError(f"{name} has no bundle for {chipset} in {' or '.join(precisions)}: {_first_line(reason)}")


def _catalogue() -> tuple[Any, type[Exception]]:
    """Its module `fetch`, and what it raises for expected errors. PullError where it is too old or lacks packages."""
    try:
        fetch = importlib.import_module(f"{PACKAGE}.fetch")
        return fetch, importlib.import_module(f"{PACKAGE}.errors").CLIUserError
    except ImportError as error:
        raise PullError(
            f"the installed {PACKAGE} cannot be used ({_first_line(error)}): pip install --upgrade 'hexserve[hub]'"
        ) from error


def _ask(fetch: Any, name: str, chipset: str, precision: str) -> str:
    return str(fetch.get_asset_url(model=name, runtime=RUNTIME, precision=precision, chipset=chipset, quiet=True))


def _first_line(error: BaseException | None) -> str:
    """A KeyError quotes its message; the rest of a long one is a traceback in words."""
    text = str(error.args[0] if error is not None and error.args else error)
    return (text.splitlines() or ["no reason given"])[0][:_LONGEST_REASON]
