"""What computes for an engine: one worker, or one for each device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.client.devices import DeviceGroup
from engine.client.supervisor import Patience, Supervisor
from engine.client.worker_process import HangBounds, worker_command
from engine.config import SAVER, EngineConfig
from engine.errors import HexserveError
from engine.request import TokenEvent

Workers = Supervisor | DeviceGroup


def open_workers(
    config: EngineConfig,
    command: Sequence[str] | None,
    label: str,
    deliver: Callable[[TokenEvent], None],
    fail: Callable[[str, HexserveError], None],
) -> Workers:
    """By the settings; of the first worker by `command`, if there is one. Nothing has been started.

    In the log a device's worker has the name of its bundle's folder.
    """
    patience = Patience(polite_s=max(Patience().polite_s, config.save_s))
    bounds = HangBounds(config.step_timeout_s)
    first = command or worker_command(config, label)
    if not config.devices:
        return Supervisor(first, deliver, fail, patience, hang_bounds=bounds, label=label)
    other = worker_command(replace(config, bundle=config.devices, devices=""), label)
    make = [
        partial(Supervisor, own, patience=patience, hang_bounds=bounds, label=label or Path(bundle).name)
        for own, bundle in ((first, config.bundle), (other, config.devices))
    ]
    return DeviceGroup(make, deliver, fail, label, config.power == SAVER)


# Long enough for two blocks of any tokenizer.
CHECK_TEXT = (
    "The two lighthouses stand a mile apart. When fog comes in from the sea, the keeper of the first one rings a bell "
    "three times, and the keeper of the second one answers. Nobody remembers who began it. The ships that pass hear "
    "both bells and know from the time between them how far away the rocks are, and"
)
CHECKED_TOKENS = 64
