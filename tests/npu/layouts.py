"""What the NPU tests compile."""

from engine.compile.arguments import Quant, Target

EMULATED = {"target": Target.X_ELITE, "rows": (1, 32), "context": (256,), "share_weights": False}
LAYOUTS: dict[str, dict[str, object]] = {
    "fp16": {**EMULATED, "quant": Quant.FP16},
    "w4": {**EMULATED, "quant": Quant.W4},
    "w8a16": {**EMULATED, "quant": Quant.W8A16},
    # The layers in two binaries and another cut at the head, chained in one wrapper; the same past for both widths.
    "parts": {**EMULATED, "quant": Quant.W4, "part_mb": 3, "context": (), "same_past": (224,)},
    "shared": {**EMULATED, "quant": Quant.W4, "share_weights": True},
}
