"""`python -m tools.simulate.wheel`: what the wheel qai-hub-models publishes of language models, into ai_hub.json.

The wheel is fetched by pip at the version and hash of tools/real_models/packages.toml, or named. It has a perf.yaml
for each model with what AI Hub measured, and a model.py with the sizes that a cache follows from.
"""

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import yaml

from engine.sources.ai_hub import RUNTIMES
from tools.real_models.fetch import RealModels, default_folder
from tools.simulate.published import DATA, HUB_CHIPS, HubFigures, HubSpeed

NAME = "qai-hub-models"
MODELS = "qai_hub_models/models"
# What is simulated on the NPU, and beside it on the CPU of the same laptop: (precision, runtimes, processor, devices).
KINDS = (("w4a16", RUNTIMES, "npu", tuple(HUB_CHIPS)), ("q4_0", ("geniex_llamacpp",), "cpu", ("x-elite",)))


def read_wheel(wheel: Path) -> HubFigures:
    """Every text model whose sizes the wheel tells and whose graphs decode row by row."""
    with zipfile.ZipFile(wheel) as archive:
        chips = yaml.safe_load(archive.read("qai_hub_models/devices_and_chipsets.yaml"))["chipsets"]
        devices = {chips[chip]["reference_device"]: device for device, chip in HUB_CHIPS.items()}
        paths = map(PurePosixPath, archive.namelist())
        names = sorted(path.parent.name for path in paths if path.match(f"{MODELS}/*/perf.yaml"))
        kv_bytes, speeds = {}, []
        for model in names:
            text = archive.read(f"{MODELS}/{model}/perf.yaml")
            found = list(_speeds(model, yaml.safe_load(text), devices)) if b"llm_metrics" in text else []
            has_npu = any(speed.processor == "npu" for speed in found)
            if has_npu and (cached := _kv_bytes(archive, model)) is not None:
                kv_bytes[model] = cached
                speeds += found
    return HubFigures(NAME, wheel.name.split("-")[1], kv_bytes, tuple(speeds))


def _kv_bytes(archive: zipfile.ZipFile, model: str) -> int | None:
    """Keys and values of a token in 8 bits. None without sizes, with images, or with no graph of one row (SSD)."""
    try:
        code = ast.parse(archive.read(f"{MODELS}/{model}/model.py"))
    except KeyError:
        return None
    known: dict[str, Any] = {}
    for node in code.body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            try:
                known[target.id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    sizes = [known.get(f"NUM_{what}") for what in ("LAYERS", "KEY_VALUE_HEADS", "ATTN_HEADS")]
    if None in sizes or "VISION_HIDDEN_SIZE" in known or 1 not in known.get("DEFAULT_EXPORT_SEQUENCE_LENGTHS", [1]):
        return None
    layers, kv_heads, heads = (int(size) for size in sizes if size is not None)
    return 2 * layers * kv_heads * int(known.get("HEAD_DIM", known["HIDDEN_SIZE"] // heads))


def _speeds(model: str, perf: dict[str, Any], devices: dict[str, str]) -> Iterator[HubSpeed]:
    for precision, runtimes, processor, wanted in KINDS:
        components = perf["precisions"].get(precision, {}).get("components", {})
        for component in components.values():
            for name, by_runtime in component["performance_metrics"].items():
                for runtime in runtimes if devices.get(name) in wanted else ():
                    for told in by_runtime.get(runtime, {}).get("llm_metrics") or ():
                        first = told["time_to_first_token_range_milliseconds"]["min"]
                        if (told.get("desired_compute_unit") or "npu") == processor and told["tokens_per_second"]:
                            figures = told["context_length"], *_rounded(first, told["tokens_per_second"])
                            yield HubSpeed(model, devices[name], processor, runtime, precision, *figures)


def _rounded(*figures: float) -> tuple[float, ...]:
    return tuple(round(figure, 3) for figure in figures)


def text_of(found: HubFigures) -> str:
    """JSON with a line for each speed, so that a change shows as one."""
    speeds = ",\n".join(json.dumps(msgspec.to_builtins(speed)) for speed in found.speeds)
    head = {"package": found.package, "version": found.version, "kv_bytes": found.kv_bytes}
    return f'{json.dumps(head, indent=1)[:-2]},\n "speeds": [\n{speeds}\n]}}\n'


if __name__ == "__main__":
    named = Path(sys.argv[1]) if sys.argv[1:] else RealModels(default_folder()).fetch(NAME)
    DATA.write_text(text_of(read_wheel(named)), encoding="utf-8")
