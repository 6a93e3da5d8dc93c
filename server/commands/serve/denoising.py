"""Settings of block diffusion that the model to be served cannot honour as they are."""

from collections.abc import Iterator
from dataclasses import fields

from engine.bundle.manifest import DiffusionSpec
from server.settings import Settings


def remarks(diffusion: DiffusionSpec | None, settings: Settings) -> Iterator[str]:
    """A sentence for each. diffusion: None for a model that generates one token after the other."""
    if diffusion is None:
        usual = {field.name: field.default for field in fields(Settings)}
        for name, value in settings.denoising.items():
            if value != usual[name]:
                yield f"{name} changes nothing: this model generates one token after the other, not blocks"
    elif settings.denoising_steps > diffusion.block_length:
        asked, most = settings.denoising_steps, diffusion.block_length
        yield f"denoising_steps is {asked}, a block of this model has {most} tokens: {most} passes at most"
