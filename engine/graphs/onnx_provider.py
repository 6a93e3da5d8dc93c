"""What runs a bundle's graphs, once the bundle was checked."""

from pathlib import Path

from engine.bundle.check import check_contract, check_listed
from engine.bundle.hashes import check_once
from engine.bundle.manifest import Manifest
from engine.graphs.onnx_qnn import qnn_provider
from engine.graphs.onnx_qnn_trial import check_bundle
from engine.graphs.onnx_sessions import Provider, cpu_provider


def checked_provider(
    folder: Path, manifest: Manifest, threads: int, memory: Path | None, spins: bool = False
) -> Provider:
    """The CPU, or for an NPU bundle the QNN provider once its binaries were tried. BundleError for what is damaged.

    Either way the files are what was compiled: their hashes were compared, now or earlier, as `memory` remembers.
    spins: see `cpu_provider`.
    """
    if manifest.npu is None:
        check_listed(manifest)
        check_contract(manifest)
        check_once(folder, manifest, memory)
        return cpu_provider(threads, spins)
    check_bundle(folder, manifest, memory)
    return qnn_provider(manifest)
