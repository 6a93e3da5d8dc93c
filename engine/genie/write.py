"""Makes an own NPU bundle a Genie bundle as well: configuration, metadata, and graph names that Genie can order. Keys:
Qualcomm's public Genie documentation (80-63442-10); `bos-token` is mandatory, -1 means none (libGenie 2.51)."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.model_spec import RopeSpec
from engine.bundle.vision import Cutting
from engine.errors import BundleError
from engine.genie.config import CONFIG_FILE, NO_BOS, load_fields
from engine.genie.extras import BY_AXIS, SCALED_KINDS, TOLD
from engine.genie.images import ENCODER_FILE, PADS
from engine.genie.parts import REALS
from engine.genie.text import token_ids
from engine.runtime.qnn.binary import padded, rename_graphs

TEXT_ENCODER_FILE, GENERATOR_FILE = "text-encoder.json", "text-generator.json"
NODES = {"imageEncoder": ENCODER_FILE, "lutEncoder": TEXT_ENCODER_FILE, "textGenerator": GENERATOR_FILE}
EMBEDDINGS = {
    "imageEncoder": "GENIE_NODE_IMAGE_ENCODER_EMBEDDING_OUTPUT",
    "lutEncoder": "GENIE_NODE_TEXT_ENCODER_EMBEDDING_OUTPUT",
}
ENDS = ("producer_node", "producer_node_io", "consumer_node", "consumer_node_io")
TAKEN, ANY = "GENIE_NODE_TEXT_GENERATOR_EMBEDDING_INPUT", "GENIE_NODE_WILDCARD"
QWEN_PAD = PADS[0]
QWEN_AROUND = ("<|vision_start|>", "<|vision_end|>")  # which its chat template writes


def image_files(manifest: Manifest, config: Mapping[str, object], dialog: object, extensions: str) -> dict[str, object]:
    """The files of a folder that reads images, by name; none for a text model. dialog: of genie_config.json.
    BundleError for images that Genie has no form of."""
    vision, npu, graph = manifest.vision, manifest.npu, manifest.image_graph
    if vision is None or vision.fixed is None or graph is None:
        return {}
    if vision.cutting is Cutting.GRID:
        raise BundleError("Genie has no images that are cut into rows of tiles")
    if vision.both_ways:
        raise BundleError("Genie has no rows that see those behind them")
    assert npu is not None and manifest.embedding is not None
    patch = vision.native.patch if vision.native is not None else patch_of(config)
    sizes = {"height": vision.fixed.height // patch, "width": vision.fixed.width // patch}
    own = {"version": 1, "spill-fill-bufsize": 0, "use-mmap": False, "allow-async-init": False}
    back_end = {"version": 1, "type": "QnnHtp", "QnnHtp": own, "extensions": extensions}
    binary = {"version": 1, "ctx-bins": [file for file, _ in npu.chains[graph.name]]}
    model = {"version": 1, "type": "binary", "binary": binary, "vision-param": sizes}
    engine = {"version": 1, "mode": "image", "backend": back_end, "model": model}
    table = {"version": 1, "lut-path": manifest.embedding.file, "size": manifest.embedding.width}
    lut = table | {"datatype": manifest.embedding.dtype}
    reader = {"version": 1, "path": manifest.text.tokenizer}
    return {
        ENCODER_FILE: {"image-encoder": {"version": 1, "engine": engine}},
        TEXT_ENCODER_FILE: {"text-encoder": {"version": 1, "type": "lut", "lut": lut, "tokenizer": reader}},
        GENERATOR_FILE: {"text-generator": dialog},
        "config.json": dict(config),
    }


def image_metadata(manifest: Manifest, config: Mapping[str, object]) -> dict[str, Any]:
    """What metadata.json tells of images under `genie`."""
    vision = manifest.vision
    if vision is None or vision.fixed is None:
        return {}
    fixed, native = vision.fixed, vision.native
    opening, closing = QWEN_AROUND if vision.pad == QWEN_PAD else (vision.opening, vision.closing)
    ends = [(node, output, "textGenerator", TAKEN) for node, output in EMBEDDINGS.items()]
    ends += [("imageEncoder", ANY, "textGenerator", ANY)] if vision.deepstack else []
    return {
        "supports_vision": True,
        "chat_template": {"vision_start": opening, "vision_end": closing},
        "pipeline": {"nodes": NODES, "connections": [dict(zip(ENDS, each, strict=True)) for each in ends]},
        "vision_preprocessing": {
            "image_width": fixed.width,
            "image_height": fixed.height,
            "patch_size": native.patch if native is not None else patch_of(config),
            "temporal_patch_size": fixed.frames,
            "spatial_merge_size": native.merge if native is not None else 2,
            "normalize_mean": list(fixed.mean),
            "normalize_std": list(fixed.std),
        },
    }


def patch_of(config: Mapping[str, object]) -> int:
    """Pixels of a side of a patch of tiles."""
    encoder = config.get("vision_config")
    found = encoder.get("patch_size") if isinstance(encoder, Mapping) else None
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, int) and found > 0 else 1


def by_axis(rope: RopeSpec, merge: int) -> dict[str, object]:
    """The rotation of rows of images as `rope-scaling`."""
    is_woven = list(rope.axes) != sorted(rope.axes)
    sections = [rope.axes.count(axis) for axis in range(3)]
    return {"rope-type": BY_AXIS[is_woven], "time-step": 50, "spatial-merge-size": merge, "mrope-section": sections}


BACK_END_FILE = "htp_backend_ext_config.json"
METADATA_FILE = "metadata.json"
MAX_NEW_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class GenieNames:
    """Names that Genie can order. renamed: old to new name of every graph inside the binaries, {} = they may stay.
    copies: file to make -> (binary it is a copy of, its graphs' old to new names). Genie wants every part once for each
    context; a part that sees none, such as the LM head, is one graph for all of them."""

    renamed: dict[str, str] = field(default_factory=dict)
    copies: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)


def write_genie_files(folder: Path, manifest: Manifest, config: Mapping[str, object] | None = None) -> Manifest:
    """Write genie_config.json, htp_backend_ext_config.json and metadata.json beside the binaries. config: the
    checkpoint's config.json, needed where the rotation is scaled. Graphs of a bundle of several parts get names that
    Genie can read, in binaries and wrappers: hash files afterwards, and keep the manifest that is returned. BundleError
    when Genie could not run the bundle; then nothing was written."""
    npu = manifest.npu
    if npu is None or not npu.chains:
        raise BundleError(f"{manifest.name} has no context binaries that Genie could run")
    if any(manifest.model.layer_windows):
        raise BundleError("Genie has layers with windows only where these have caches of their own")
    if manifest.kv_dtype not in REALS:
        raise BundleError(f"its caches are {manifest.kv_dtype}, Genie's are {', '.join(REALS)}")
    ids = token_ids(load_fields(folder / manifest.text.tokenizer))
    names = genie_names(manifest)
    dialog = genie_config(manifest, ids, config or {}, tuple(names.copies))
    documents = {
        CONFIG_FILE: dialog,
        BACK_END_FILE: back_end_config(npu.soc_model, npu.htp_arch),
        METADATA_FILE: metadata(manifest, config or {}),
        **image_files(manifest, config or {}, dialog["dialog"], BACK_END_FILE),
    }
    renamed = names.renamed
    for copy, (source, inside) in names.copies.items():
        shutil.copyfile(folder / source, folder / copy)
        rename_graphs(folder / copy, inside)
    for file, found in _named_in(manifest).items():
        changed = {name: renamed[name] for name in found if renamed.get(name, name) != name}
        if changed:
            rename_graphs(folder / file, changed)
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8", newline="\n")
    spec = msgspec.structs.replace(
        npu,
        binaries={file: tuple(renamed.get(name, name) for name in inside) for file, inside in npu.binaries.items()},
        chains={
            graph: tuple((file, renamed.get(name, name)) for file, name in links) for graph, links in npu.chains.items()
        },
    )
    return msgspec.structs.replace(manifest, npu=spec)


def genie_names(manifest: Manifest) -> GenieNames:
    """How to name the graphs; bundles of one part keep their names, for Genie reads none there. BundleError when a
    binary would have to be copied for a context that not all of its graphs have."""
    assert manifest.npu is not None
    names = GenieNames()
    splits = sorted(_splits(manifest), key=lambda split: -(split[0].context or 0))
    if all(len(links) == 1 for _, links in splits):
        return names
    for body, links in splits:
        for number, (file, old) in enumerate(links, start=1):
            new = padded(f"ar{body.rows}_cl{body.context}_{number}_of_{len(links)}", len(old))
            if names.renamed.setdefault(old, new) != new:
                copy = f"{Path(file).stem}_for_cl{body.context}.bin"
                names.copies.setdefault(copy, (file, {}))[1][old] = new
    for copy, (source, inside) in names.copies.items():
        if set(inside) != set(manifest.npu.binaries[source]):
            raise BundleError(f"{source} cannot be copied as {copy}: not every number of rows has that context")
    return names


def _splits(manifest: Manifest) -> Iterator[tuple[GraphSpec, tuple[tuple[str, str], ...]]]:
    """Each variant's body with all (binary, graph) pairs of a step, the LM head's last."""
    assert manifest.npu is not None
    chains = manifest.npu.chains
    heads = {graph.rows: chains[graph.name] for graph in manifest.graphs if graph.kind is GraphKind.LMHEAD}
    for graph in manifest.graphs:
        if graph.kind is not GraphKind.LMHEAD:
            yield graph, (*chains[graph.name], *heads.get(graph.rows, ()))


def _named_in(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    assert manifest.npu is not None
    chains = manifest.npu.chains
    wrappers = {graph.file: tuple(name for _, name in chains[graph.name]) for graph in manifest.graphs}
    return {**manifest.npu.binaries, **wrappers}


def genie_config(
    manifest: Manifest, ids: Mapping[str, int], config: Mapping[str, object], copies: tuple[str, ...]
) -> dict[str, object]:
    """The content of genie_config.json. ids: token text to id. copies: binaries beside those of the manifest."""
    text, model = manifest.text, manifest.model
    bos = ids.get(text.bos_token, NO_BOS) if text.add_bos and text.bos_token else NO_BOS
    binaries = [*(file for _, links in _splits(manifest) for file, _ in links), *copies]
    merge = manifest.vision.native.merge if manifest.vision and manifest.vision.native else 0
    rotation, position = _rotation(model.rope, config, merge)
    embedding: dict[str, object] = {}
    if (table := manifest.embedding) is not None:  # as qai-hub-models 0.65 has it
        told = {"version": 1, "type": "lut", "lut-path": table.file, "size": table.width, "datatype": table.dtype}
        embedding["embedding"] = told
    back_end = {
        "version": 1,
        "use-mmap": True,
        "spill-fill-bufsize": 0,
        "mmap-budget": 0,
        "poll": False,
        "cpu-mask": "0xe0",
        "kv-dim": model.head_dim,
        "allow-async-init": False,
        **rotation,
    }
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "max-num-tokens": MAX_NEW_TOKENS,
            "context": {
                "version": 1,
                "size": max(graph.context or 0 for graph in manifest.graphs),
                "n-vocab": model.vocab,
                "bos-token": bos,
                "eos-token": list(text.stop_ids) or [NO_BOS],
            },
            "sampler": {"version": 1, "seed": 42, "temp": 0.8, "top-k": 40, "top-p": 0.95},
            "tokenizer": {"version": 1, "path": text.tokenizer},
            **embedding,
            "engine": {
                "version": 1,
                "n-threads": 3,
                "backend": {"version": 1, "type": "QnnHtp", "extensions": BACK_END_FILE, "QnnHtp": back_end},
                "model": {
                    "version": 1,
                    "type": "binary",
                    "binary": {"version": 1, "ctx-bins": list(dict.fromkeys(binaries))},
                    **position,
                },
            },
        }
    }


def _rotation(rope: RopeSpec, config: Mapping[str, object], merge: int) -> tuple[dict[str, object], dict[str, object]]:
    """(keys of the back end, keys of the model): plain rotation stands in the former, another in the latter. merge:
    patches of a side of what becomes a row, of images whose rows turn by their places, else 0."""
    theta: float = int(rope.theta) if rope.theta.is_integer() else rope.theta
    whole = {"type": "rope", "rope-dim": rope.rotary_dim // 2, "rope-theta": theta}
    if merge and rope.kind != "default":
        raise BundleError(f"Genie knows no rotation by rows and columns whose frequencies are scaled by {rope.kind}")
    if merge:
        return {}, {"positional-encoding": whole | {"rope-scaling": by_axis(rope, merge)}}
    if rope.kind == "default":
        return {"pos-id-dim": rope.rotary_dim // 2, "rope-theta": theta}, {}
    if rope.kind not in SCALED_KINDS:
        raise BundleError(f"Genie knows no rotation whose frequencies are scaled by {rope.kind}")
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        raise BundleError(f"the rotation is scaled ({rope.kind}), which Genie can be told only from config.json")
    values = {**config, **scaling}
    renamed = {ours: values[theirs] for ours, theirs in TOLD.items() if values.get(theirs) is not None}
    return {}, {"positional-encoding": whole | {"rope-scaling": {"rope-type": rope.kind, **renamed}}}


def back_end_config(soc_model: int, htp_arch: int) -> dict[str, object]:
    """The content of htp_backend_ext_config.json."""
    core = {"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100}
    return {
        "devices": [{"soc_model": soc_model, "dsp_arch": f"v{htp_arch}", "cores": [core]}],
        "memory": {"mem_type": "shared_buffer"},
        "context": {"weight_sharing_enabled": True},
    }


def metadata(manifest: Manifest, config: Mapping[str, object]) -> dict[str, object]:
    """The content of metadata.json: tensors of every step with their encodings, in ONNX's sign."""
    assert manifest.npu is not None
    contexts = sorted({graph.context for graph in manifest.graphs if graph.context})
    return {
        "model_id": manifest.name,
        "model_name": manifest.name,
        "runtime": "genie" if manifest.embedding is None else "geniex_qairt",
        "precision": manifest.quant,
        "tool_versions": {"qairt": manifest.npu.sdk, **manifest.versions},
        "model_files": {
            graph.name: {"inputs": _tensors(graph.inputs), "outputs": _tensors(graph.outputs)}
            for graph in manifest.every_graph
        },
        "genie": {"context_lengths": contexts, "supports_streaming": True, **image_metadata(manifest, config)},
        "chipset_attributes": {"soc_model": manifest.npu.soc_model, "htp_version": manifest.npu.htp_arch},
    }


def _tensors(specs: tuple[TensorSpec, ...]) -> dict[str, object]:
    found: dict[str, object] = {}
    for spec in specs:
        codes = {"quantization_parameters": {"scale": spec.scale, "zero_point": spec.zero_point}}
        found[spec.name] = {"shape": list(spec.shape), "dtype": spec.dtype, **(codes if spec.scale is not None else {})}
    return found
