"""Settings of a server with several models, or with one that is not always loaded."""

from dataclasses import dataclass, field

from server.options.bounds import Bounds, setting


@dataclass(frozen=True, kw_only=True)
class ModelsSettings:
    """Which further models are served, and when one is loaded and unloaded."""

    more_models: str = field(
        default="",
        metadata={
            "bounds": Bounds(
                "Further models, SOURCE or NAME=SOURCE,...: each loads at its first use into a worker of its own.",
                is_repeatable=True,
            )
        },
    )
    models_dir: str = setting("", "Folder whose bundles, checkpoints and GGUF files are served as well.")
    models_memory_mb: int = setting(
        0,
        "MiB for all loaded models, as reckoned before; 0 = three quarters of the machine's, if known.",
        0,
    )
    idle_unload_s: float = setting(0.0, "Seconds without a request after which a model is unloaded; 0 = never.", 0)
    load_wait_s: float = setting(120.0, "Longest wait of a request for its model to be loaded; then 503.", 1)
    lazy: bool = setting(False, "Load an only model at its first use instead of at the start.")
