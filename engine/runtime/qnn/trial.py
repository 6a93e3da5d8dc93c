"""What runs a bundle's graphs, once the bundle was checked.
`python -m engine.runtime.qnn.trial FOLDER`: load an NPU bundle and end.
A damaged binary, or one the driver dislikes, kills the process that loads it. So the first load happens in a process of
its own, and its success is remembered for these files, these versions and this device."""

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from engine.bundle.check import check_contract, check_listed
from engine.bundle.manifest import GraphSpec, Manifest, TensorSpec, load_manifest
from engine.bundle.tensors import PAST_NAME
from engine.bundle.weight_files import check_once, files_key, note
from engine.errors import BundleError
from engine.processes import exit_text, module_command
from engine.runtime.onnx_library import ort
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor, as_bound
from engine.runtime.qnn.describe import REFUSED
from engine.runtime.qnn.environment import OPTIONS_VARIABLE, explain, package_version
from engine.runtime.qnn.provider import check_machine, device_name, qnn_provider
from engine.runtime.qnn.reader import check_age, describe_binary, run_apart, runtime_version
from engine.runtime.sessions import Provider, cpu_provider, load_sessions, open_graph

# onnxruntime compares sizes only.
RELATIVE = 1e-6  # scales are float32 in the binary
DESCRIBED = re.compile(r"_(in|out)$")


def check_binaries(manifest: Manifest, infos: Mapping[str, BinaryInfo]) -> None:
    """Compare every graph of an NPU bundle with what its binaries (by file name) hold.
    BundleError names the graph, the tensor and the difference."""
    assert manifest.npu is not None
    graphs = {(file, graph.name): graph for file, info in infos.items() for graph in info.graphs}
    for spec in manifest.every_graph:
        chain = manifest.npu.chains.get(spec.name)
        if not chain:
            raise BundleError(f"the manifest does not say which binary graph {spec.name} runs")
        for file, name in chain:
            if (file, name) not in graphs:
                raise BundleError(f"graph {spec.name} runs {name}, which {file} does not hold")
        links = [graphs[link] for link in chain]
        _check_chain(spec, links)
        made = {tensor.name: tensor for link in links for tensor in link.outputs}
        taken = {tensor.name: tensor for link in links for tensor in link.inputs}
        inputs = {name: tensor for name, tensor in taken.items() if name not in made}
        outputs = {name: tensor for name, tensor in made.items() if name not in taken}
        _check_side(spec, "input", spec.inputs, inputs)
        _check_side(spec, "output", spec.outputs, outputs)
        _check_caches(spec, inputs, outputs)


def _check_chain(spec: GraphSpec, links: list[BinaryGraph]) -> None:
    """A tensor between two parts must be the same on both sides: it is passed on byte for byte."""
    made: dict[str, BinaryTensor] = {}
    for link in links:
        for tensor in link.inputs:
            before = made.get(tensor.name)
            if before is not None and _form(before) != _form(tensor):
                both = f"{before.spec()} and enters the next as {tensor.spec()}"
                raise BundleError(f"graph {spec.name}: {tensor.name} leaves one part as {both}")
        made |= {tensor.name: tensor for tensor in link.outputs}


def _check_side(spec: GraphSpec, side: str, wanted: Iterable[TensorSpec], found: Mapping[str, BinaryTensor]) -> None:
    left = dict(found)
    for tensor in wanted:
        real = left.pop(tensor.name, None)
        if real is None:
            raise BundleError(f"graph {spec.name} has no {side} {tensor.name} in its binary")
        if real.data_format:
            raise BundleError(
                f"graph {spec.name} {side} {tensor.name} has a private layout (data format {real.data_format}), such "
                "as HMX tiles; it cannot be filled from here"
            )
        if real.dtype != tensor.dtype or _axes(real.shape) != _axes(tensor.shape):
            raise BundleError(
                f"graph {spec.name} {side} {tensor.name} is {real.spec()} in its binary, the manifest says {tensor}"
            )
        _check_encoding(spec, side, tensor, real)
    if left:
        raise BundleError(f"graph {spec.name} has the {side} {next(iter(left))}, which its manifest does not know")


def _check_encoding(spec: GraphSpec, side: str, tensor: TensorSpec, real: BinaryTensor) -> None:
    own, is_same = real.spec(), False
    if own.scale is None or tensor.scale is None:
        is_same = own.scale is tensor.scale
    else:
        is_near = abs(own.scale - tensor.scale) <= RELATIVE * abs(own.scale)
        is_same = is_near and own.zero_point == (tensor.zero_point or 0)
    if not is_same:
        raise BundleError(f"graph {spec.name} {side} {tensor.name} is {own} in its binary, the manifest says {tensor}")


def _check_caches(spec: GraphSpec, inputs: Mapping[str, BinaryTensor], outputs: Mapping[str, BinaryTensor]) -> None:
    """Keys and values are copied from output to input as they are, so both must be encoded alike."""
    for name, tensor in inputs.items():
        if not PAST_NAME.fullmatch(name):
            continue
        twin = outputs.get(DESCRIBED.sub("_out", name))
        if twin is None:
            raise BundleError(f"graph {spec.name} takes {name} but gives nothing to fill it with")
        if twin.spec().encoding != tensor.spec().encoding:
            raise BundleError(f"graph {spec.name}: {name} is {tensor.spec()}, {twin.name} is {twin.spec()}")


def _form(tensor: BinaryTensor) -> tuple[object, ...]:
    return _axes(tensor.shape), tensor.data_format, tensor.spec().encoding


def _axes(shape: Iterable[int | str]) -> list[int | str]:
    """Exports differ in axes of length 1; the bytes are the same."""
    return [size for size in shape if size != 1]


TRIAL_FOLDER = "loads"
TIMEOUT_S = 600.0


def main(argv: Sequence[str]) -> int:
    """0 when every graph loads; 3 after one sentence on stderr when one is refused."""
    folder = Path(argv[0])
    try:
        manifest = load_manifest(folder)
        provider = qnn_provider(manifest)
        sessions = load_sessions(folder, manifest, provider)
        if manifest.image_graph is not None:
            open_graph(folder, manifest.image_graph, provider)
        sessions.clear()
    except BundleError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


def check_bundle(folder: Path, manifest: Manifest, cache: Path | None) -> None:
    """Everything that is checked before an NPU bundle is loaded for good. BundleError says what is wrong.
    cache: where binaries' descriptions and successful loads are remembered, None = nowhere."""
    check_machine(manifest)
    check_listed(manifest)
    check_contract(manifest)
    marker = cache / TRIAL_FOLDER / f"{trial_key(folder, manifest)}.json" if cache else None
    if marker is not None and marker.is_file():
        return
    check_once(folder, manifest, cache)
    check_binaries(manifest, as_bound(folder, manifest, read_binaries(folder, manifest, cache)))
    try_load(folder, module_command("engine.runtime.qnn.trial"))
    note(marker, manifest)


def read_binaries(folder: Path, manifest: Manifest, cache: Path | None) -> dict[str, BinaryInfo]:
    """What each binary of a bundle holds; BundleError when one is damaged or newer than the runtime."""
    assert manifest.npu is not None
    infos: dict[str, BinaryInfo] = {}
    with tempfile.TemporaryDirectory(prefix="hexserve-") as nowhere:
        for file in manifest.npu.binaries:
            infos[file] = describe_binary(folder / file, cache or Path(nowhere))
            check_age(file, infos[file], runtime_version())
    return infos


def trial_key(folder: Path, manifest: Manifest) -> str:
    """Names a load: the files as they lie there, what would load them, and the options."""
    assert manifest.npu is not None
    names = {*manifest.npu.binaries, *(graph.file for graph in manifest.every_graph)}
    runtime = (ort.__version__, package_version(), device_name(), os.environ.get(OPTIONS_VARIABLE, ""))
    return files_key(folder, manifest, names, runtime)


def try_load(folder: Path, command: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
    """Load in another process; BundleError with its reason, or with how it died."""
    result = run_apart(command, folder, timeout_s)
    if result is None:
        raise BundleError(f"the binaries of {folder.name} did not load within {timeout_s:g} s")
    if result.returncode == 0:
        return
    errors = result.stderr.decode("utf-8", "replace")
    meaning = f"; {found}" if (found := explain(errors)) else ""
    if result.returncode == REFUSED:
        raise BundleError(f"{errors.strip().splitlines()[-1]}{meaning}")
    raise BundleError(
        f"the QNN runtime {exit_text(result.returncode)} while it loaded the binaries of {folder.name}: they are "
        f"damaged, or not made for this {device_name()}{meaning or '; `hexserve doctor` tells more'}"
    )


def check_files(folder: Path, manifest: Manifest, memory: Path | None) -> None:
    """Everything that is checked before a graph of a CPU bundle is opened. BundleError says what is wrong."""
    check_listed(manifest)
    check_contract(manifest)
    check_once(folder, manifest, memory)


def checked_provider(
    folder: Path, manifest: Manifest, threads: int, memory: Path | None, spins: bool = False
) -> Provider:
    """The CPU, or for an NPU bundle the QNN provider once its binaries were tried. BundleError for what is damaged.
    Either way the files are what was compiled: their hashes were compared, now or earlier, as `memory` remembers.
    spins: see `cpu_provider`."""
    if manifest.npu is None:
        check_files(folder, manifest, memory)
        return cpu_provider(threads, spins)
    check_bundle(folder, manifest, memory)
    return qnn_provider(manifest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
