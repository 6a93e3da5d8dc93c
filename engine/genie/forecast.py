"""Self-speculation of a Genie folder: the settings of its dialog, and the file of its forecast prefix."""

from dataclasses import dataclass
from pathlib import Path

from engine.bundle.forecast import ForecastSpec
from engine.bundle.forecast_prefix import read_forecast_prefix
from engine.bundle.manifest import ModelSpec
from engine.errors import BundleError
from engine.files.names import confined
from engine.files.opening import is_regular, shown
from engine.genie.config import CONFIG_FILE, SELF_SPECULATION, GenieConfig

PREFIX_FILE = "kv-cache.primary.qnn-htp"
OWN_FILE = "forecast_prefix.bin"
MOST_COLUMNS = 1024
MOST_LEVELS, MOST_BRANCHES = 8, 16


@dataclass(frozen=True, slots=True)
class ForecastSource:
    """What goes into the manifest, and the file in the folder."""

    spec: ForecastSpec
    path: Path


def read_forecast(folder: Path, config: GenieConfig, model: ModelSpec, kv_dtype: str) -> ForecastSource | None:
    """None where the dialog does not speculate by itself, or the folder lacks the prefix: it then is an ordinary one.

    BundleError names the key or the file that is wrong.
    """
    settings = config.forecast
    if settings is None or not settings.has("forecast-prefix-name"):
        return None
    name = f"{settings.text('forecast-prefix-name', '')}/{PREFIX_FILE}"
    try:
        path = confined(folder, name)
    except OSError as error:
        raise BundleError(f"{CONFIG_FILE}: dialog.{SELF_SPECULATION}.forecast-prefix-name: {shown(error)}") from error
    if not is_regular(path):
        return None
    branches = settings.integers("branches") or (3,)  # as libGenie takes them where there are none
    if len(branches) > MOST_LEVELS or not all(1 <= width <= MOST_BRANCHES for width in branches):
        raise BundleError(
            f"{CONFIG_FILE}: dialog.{SELF_SPECULATION}.branches must be up to {MOST_LEVELS} numbers from 1 to "
            f"{MOST_BRANCHES}, they are {list(branches)[:MOST_LEVELS]}"
        )
    columns = settings.integer("forecast-prefix", 1, MOST_COLUMNS, 16)
    read_forecast_prefix(folder, ForecastSpec(name, columns, 0, branches), model, kv_dtype)
    return ForecastSource(ForecastSpec(OWN_FILE, columns, config.vocabulary or model.vocab, branches), path)
