"""Tables of embeddings beside a folder's binaries: where graphs take embeddings, the host looks tokens up in them.

Keys: what qai-hub-models 0.65 writes into genie_config.json (`dialog.embedding`); without `lut-path` its usual name.
"""

from pathlib import Path

from engine.bundle.specs import TableSpec
from engine.bundle.weight_files import EMBEDDING_FILE
from engine.errors import BundleError
from engine.files import brief, confined, is_regular, shown
from engine.genie.config import CONFIG_FILE, Fields

USUAL_LAYER_FILE = "embed_token_int16_lut.bin"
DATATYPES = {"float32": "float32", "ufixed8": "uint8", "ufixed16": "uint16"}
MOST_WIDTH = 1 << 24


def read_embedding(folder: Path, section: Fields) -> TableSpec:
    """The table of tokens' embeddings, told by `dialog.embedding`. BundleError names the key or the file."""
    return read_table(folder, section, "dialog.embedding", EMBEDDING_FILE)


def read_layer_embedding(folder: Path, section: Fields) -> TableSpec:
    """The table of what each layer gets of a token, told by `dialog.perlayer-embedding`."""
    return read_table(folder, section, "dialog.perlayer-embedding", USUAL_LAYER_FILE)


def read_table(folder: Path, section: Fields, where: str, usual: str) -> TableSpec:
    """A table whose section says its file, width and type. BundleError names what is missing or wrong."""
    kind = section.text("type", "lut")
    if kind != "lut":
        raise BundleError(f"{CONFIG_FILE}: {where}.type must be 'lut', not {brief(kind)}: a callback cannot be called")
    name = section.text("lut-path", usual)
    try:
        path = confined(folder, Path(name.replace("\\", "/")).name)
        if not is_regular(path):
            raise BundleError(f"{folder} has no {path.name}, the table of what its graphs take in place of token ids")
    except OSError as error:
        raise BundleError(f"{CONFIG_FILE}: {where}.lut-path: {shown(error)}") from error
    width = section.integer("size", 1, MOST_WIDTH, 0)
    if not width:
        raise BundleError(f"{CONFIG_FILE}: {where}.size must say how many numbers a token has in {path.name}")
    told = section.text("datatype", "float32")
    if told not in DATATYPES:
        raise BundleError(f"{CONFIG_FILE}: {where}.datatype must be {' or '.join(DATATYPES)}, not {brief(told)}")
    if told == "float32":
        return TableSpec(path.name, told, width)
    scale, offset = _encoding(section.group("quant-param"), where)
    return TableSpec(path.name, DATATYPES[told], width, scale, -offset)


def _encoding(told: Fields, where: str) -> tuple[float, int]:
    scale, offset = told.values.get("scale"), told.values.get("offset")
    if isinstance(scale, int | float) and 0 < scale <= 1e30 and isinstance(offset, int) and abs(offset) <= 65536:
        return float(scale), int(offset)
    raise BundleError(
        f"{CONFIG_FILE}: {where}.quant-param must have a scale above 0 and an integer offset, they are "
        f"{brief(scale)} and {brief(offset)}"
    )
