"""Runs in an environment that has Qualcomm's own client: `engine.sources.ai_hub` against a store on this machine.

The client has the addresses of PyPI and of its store's manifest written into it, and keeps what it finds there in its
cache: these two lie there as after a first call. The manifest points to the store here, which has everything else.
Prints one JSON list: for each question of the command line its answer, or [name of the error, its sentence].
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from qai_hub_models_cli.common import CACHE_DIR
from qai_hub_models_cli.proto.info_pb2 import ModelInfo
from qai_hub_models_cli.proto.manifest_pb2 import ManifestModelEntry, ModelManifestUrls, ReleaseManifest
from qai_hub_models_cli.proto.perf_pb2 import ModelPerf
from qai_hub_models_cli.proto.platform_pb2 import ChipsetInfo, DeviceInfo, PlatformInfo, RuntimeInfo
from qai_hub_models_cli.proto.release_assets_pb2 import ModelReleaseAssets
from qai_hub_models_cli.proto.shared.precision_pb2 import Precision
from qai_hub_models_cli.proto.shared.range_pb2 import DoubleRange
from qai_hub_models_cli.proto.shared.runtime_pb2 import Runtime
from qai_hub_models_cli.versions import CURRENT_VERSION

CHIPS = {"qualcomm-snapdragon-x-elite": "Snapdragon X Elite CRD", "qualcomm-snapdragon-x2-elite": "Snapdragon X2 CRD"}
X, X2 = CHIPS
W4A16, W4 = Precision.PRECISION_W4A16, Precision.PRECISION_W4
GENIE, GENIEX, VOICE = Runtime.RUNTIME_GENIE, Runtime.RUNTIME_GENIEX_QAIRT, Runtime.RUNTIME_VOICE_AI
ASSETS = {
    "both": [(W4A16, GENIE, X), (W4A16, GENIEX, X), (W4, GENIEX, X)],
    "older": [(W4A16, GENIE, X)],
    "mixed": [(W4, GENIEX, X), (W4A16, GENIE, X2)],
    "whisper": [(Precision.PRECISION_FLOAT, VOICE, X)],
    "none": [],
}


def release(store: str) -> dict[str, bytes]:
    """What the store serves, by path."""
    runtimes = [
        RuntimeInfo(runtime=runtime, is_aot_compiled=True, display_name=name)
        for runtime, name in ((GENIE, "Genie"), (GENIEX, "GenieX"), (VOICE, "Voice AI"))
    ]
    platform = PlatformInfo(
        runtimes=runtimes,
        chipsets=[ChipsetInfo(name=chip, marketing_name=chip, supports_weight_sharing=True) for chip in CHIPS],
        devices=[DeviceInfo(name=device, chipset=chip) for chip, device in CHIPS.items()],
    )
    served = {"platform.pb": platform.SerializeToString()}
    for model, listed in ASSETS.items():
        details = [
            ModelReleaseAssets.AssetDetails(
                precision=precision,
                runtime=runtime,
                chipset=chip,
                download_url=f"{store}/{model}-{Runtime.Name(runtime)}-{Precision.Name(precision)}-{chip}.zip",
            )
            for precision, runtime, chip in listed
        ]
        served[f"{model}/assets.pb"] = ModelReleaseAssets(model_id=model, assets=details).SerializeToString()
        served[f"{model}/info.pb"] = ModelInfo(id=model, name=model).SerializeToString()
        served[f"{model}/perf.pb"] = speeds(model).SerializeToString()
    return served


def speeds(model: str) -> ModelPerf:
    """Two contexts on the NPU, and one on the CPU."""
    figures = [
        ModelPerf.LLMPerfMetrics(
            context_length=context,
            tokens_per_second=rate,
            time_to_first_token_range_milliseconds=DoubleRange(min=least, max=9000.0),
            desired_compute_unit=unit,
        )
        for context, rate, least, unit in ((512, 30.0, 80.0, "npu"), (4096, 20.0, 100.0, ""), (4096, 9.0, 700.0, "cpu"))
    ]
    details = ModelPerf.PerformanceDetails(precision=W4A16, runtime=GENIEX, device=CHIPS[X], llm_metrics=figures)
    return ModelPerf(model_id=model, performance_metrics=[details])


def serve() -> tuple[str, dict[str, bytes]]:
    """The store's address, and what it will serve."""
    served: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = served.get(self.path.lstrip("/"))
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}", served


def remember_first_call(store: str) -> None:
    """The versions there are, and the manifest of this one."""
    entries = []
    for model in ASSETS:
        places = {name: f"{store}/{model}/{name}.pb" for name in ("info", "perf")}
        urls = ModelManifestUrls(**places, release_assets=f"{store}/{model}/assets.pb")
        entries.append(ManifestModelEntry(id=model, display_name=model, manifest_urls=urls))
    manifest = ReleaseManifest(version=str(CURRENT_VERSION), platform_url=f"{store}/platform.pb", models=entries)
    folder = CACHE_DIR / "releases" / f"v{CURRENT_VERSION}"
    folder.mkdir(parents=True)
    (folder / "manifest.pb").write_bytes(manifest.SerializeToString())
    (CACHE_DIR / "published-versions.txt").write_text(str(CURRENT_VERSION))


def main(questions: list[list[str]]) -> None:
    assert Path(os.environ["XDG_CACHE_HOME"]) in CACHE_DIR.parents
    from engine.sources import ai_hub
    from engine.sources.names import AiHubName, FetchFailed
    from tools.simulate.published import published_speeds

    store, served = serve()
    served.update(release(store))
    remember_first_call(store)
    answers: list[object] = []
    for question, model, precision, chip in questions:
        try:
            if question == "address":
                answers.append(ai_hub.bundle_address(AiHubName(model, precision, chip)).removeprefix(store))
            else:
                found = published_speeds(model, chip or X)
                answers.append([[each.runtime, each.context, each.first_token_ms, each.decode_per_s] for each in found])
        except FetchFailed as error:
            answers.append(["FetchFailed", str(error)])
    print(json.dumps(answers))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
