"""`python -m engine.compile.transforms.plant_outliers SOURCE -o DIR`: the same function with outlier channels.

For measuring what quantisation loses to them (`outliers.py`). Weights are written as float32 safetensors.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.compile.checkpoint import INDEX_FILE
from engine.compile.random_checkpoint import write_shards
from engine.compile.source import FolderSource
from engine.compile.transforms.outliers import OutlierPlan
from engine.compile.transforms.source import with_outliers
from engine.errors import HexserveError
from engine.models.family import read_network

WEIGHTS = ".safetensors"


def plant_outliers(source: Path, folder: Path, plan: OutlierPlan, seed: int = 0) -> None:
    """Write a Hugging Face folder made of another; it must be empty or new. CompileError when one is no checkpoint."""
    inner = FolderSource(source)
    planted = with_outliers(inner, read_network(inner.config), plan, seed)
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(WEIGHTS) and path.name != INDEX_FILE:
            shutil.copyfile(path, folder / path.name)
    config = {key: value for key, value in planted.config.items() if key != "dtype"} | {"torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    with planted.tensors() as checkpoint:
        names = checkpoint.unused()  # nothing has been asked for: all of them
        write_shards(folder, ((name, checkpoint.tensor(name, checkpoint.shape(name))) for name in names))


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and write the folder; 0, 1 after one line on stderr."""
    plan = OutlierPlan()
    parser = argparse.ArgumentParser(description="Write a checkpoint that computes the same as SOURCE with outliers.")
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    for name in ("channels", "columns", "values", "ffn"):
        parser.add_argument(f"--{name}", type=int, default=getattr(plan, name))
    parser.add_argument("--factor", type=float, default=plan.factor)
    parser.add_argument("--column-factor", type=float, default=plan.column_factor)
    options = parser.parse_args(argv)
    chosen = OutlierPlan(
        options.channels, options.columns, options.values, options.ffn, options.factor, options.column_factor
    )
    try:
        plant_outliers(options.source, options.output, chosen, options.seed)
    except HexserveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
