"""Settings of stored responses."""

from dataclasses import dataclass

from server.options.bounds import setting


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """Whether, where and how long responses are kept."""

    store_responses: bool = setting(
        False, "Store responses, as OpenAI does where a request does not say store: false; off = such fields are 400."
    )
    data_dir: str = setting("", "Folder for stored responses; empty = the user's own.")
    stored_mb: int = setting(512, "Most MiB of stored responses; those not used for longest go first.", 1, 1 << 20)
    stored_days: float = setting(30.0, "Days after its last use when a stored response goes; 0 = no bound.", 0, 36500)
