"""Ready bundles of Qualcomm AI Hub, asked of its own package `qai_hub_models_cli`."""

import importlib
import importlib.util
from collections.abc import Sequence
from itertools import product
from typing import Any

from engine.isolation.machine import processor_name
from engine.processes import install_command
from engine.sources.names import AiHubName, FetchFailed

# What Qualcomm AI Hub calls the chips, and the forms of weights that it has bundles in, the first one first.
X_ELITE, X2_ELITE = "qualcomm-snapdragon-x-elite", "qualcomm-snapdragon-x2-elite"
PRECISIONS = ("w4a16", "w4", "float")
RUNTIMES = ("geniex_qairt", "genie")  # folders of one shape; Qualcomm withdraws the second
SPEECH = "voice_ai"  # a Whisper's folder with its words; those of its other runtimes have none
PACKAGE = "qai_hub_models_cli"
_LONGEST_REASON = 300


def bundle_address(name: AiHubName, chipset: str = X_ELITE) -> str:
    """URL of the zip that a name stands for. chipset: unless it names one. FetchFailed."""
    precisions = (name.precision,) if name.precision else PRECISIONS
    return find_bundle(name.model, name.chipset or chipset, precisions)


def machine_chipset() -> str:
    """AI Hub's name of this machine's processor."""
    return chipset_of(processor_name())


def chipset_of(chip: str) -> str:
    """AI Hub's name of a processor. X Plus runs what is made for X Elite, and elsewhere the emulator does."""
    from engine.doctor import machine  # noqa: PLC0415  # loads onnxruntime

    return X2_ELITE if machine.chip_of(chip) == machine.X2_ELITE else X_ELITE


def find_bundle(name: str, chipset: str = X_ELITE, precisions: Sequence[str] = PRECISIONS) -> str:
    """URL of the model's bundle in the first precision, and there for the first runtime, that is published. Raises
    FetchFailed when the package is missing or too old, the network is down, or there is no such bundle."""
    fetch, expected = hub_module("fetch"), user_error()
    reason: Exception | None = None
    runtimes = (*RUNTIMES, SPEECH)
    for precision, runtime in product(precisions, runtimes):
        try:
            return str(
                fetch.get_asset_url(model=name, runtime=runtime, precision=precision, chipset=chipset, quiet=True)
            )
        except expected as error:  # a wrong name, or nothing published: OSErrors of the network are not among these
            reason = reason or error
        except OSError as error:
            raise unreachable(error) from error
    kinds = f"{' or '.join(precisions)}, for {' or '.join(runtimes)}"
    raise FetchFailed(f"{name} has no bundle for {chipset} in {kinds}: {first_line(reason)}")


def hub_module(name: str) -> Any:
    """A module of the package. FetchFailed where it is missing, too old, or lacks packages of its own."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise FetchFailed(f"fetching bundles needs Qualcomm's catalogue: {install_command('hub')}")
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ImportError as error:
        raise FetchFailed(
            f"the installed {PACKAGE} cannot be used ({first_line(error)}): {install_command('hub', '--upgrade')}"
        ) from error


def user_error() -> type[Exception]:
    """What the package raises for what its user can mend."""
    found: type[Exception] = hub_module("errors").CLIUserError
    return found


def unreachable(error: OSError) -> FetchFailed:
    """The innermost error tells the reason, without the addresses and objects of those round it."""
    inner: BaseException = error
    while inner.__cause__ or inner.__context__:
        inner = inner.__cause__ or inner.__context__ or inner
    return FetchFailed(
        f"the catalogue of Qualcomm AI Hub cannot be reached ({first_line(inner)}); run the same command again with a "
        "connection"
    )


def first_line(error: BaseException | None) -> str:
    """A KeyError quotes its message; the rest of a long one is a traceback in words."""
    is_quoted = isinstance(error, KeyError) and bool(error.args)
    text = str(error.args[0] if is_quoted and error is not None else error)
    return (text.splitlines() or ["no reason given"])[0][:_LONGEST_REASON]
