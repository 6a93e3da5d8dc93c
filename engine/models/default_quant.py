"""The method of quantisation of a checkpoint's folder for a CPU when none is asked for."""

from pathlib import Path

from engine.models.config_fields import generator_quant, quant_by_size
from engine.models.encoders import is_encoder_folder
from engine.models.speech import is_speech_folder
from engine.models.stored_codes import float_bytes, stored_codes_of


def checkpoint_quant(folder: Path, machine: int) -> str:
    """The nearest to its floats that its size allows. machine: its memory in bytes, 0 = not known.

    Encoders and Whispers have at least 8 bits; codes that bundles hold as they are stay.
    """
    size, stored = float_bytes(folder), stored_codes_of(folder)
    if is_encoder_folder(folder):
        return quant_by_size(size, "int8")
    if stored is not None and stored.is_carried:
        return "keep"
    return "int8" if is_speech_folder(folder) else generator_quant(size, machine)
