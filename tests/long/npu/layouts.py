"""What the NPU tests compile."""

from engine.compile.arguments import KvUpdate, Layout, Quant, Target

EMULATED = {"target": Target.X_ELITE, "rows": (1, 32), "context": (256,), "share_weights": False}
FUSED = {**EMULATED, "layout": Layout.FUSED, "rows": (16,), "context": (), "same_past": (160,)}
UPDATED = {**FUSED, "kv_update": KvUpdate.GRAPH}
LAYOUTS: dict[str, dict[str, object]] = {
    "fp16": {**EMULATED, "quant": Quant.FP16},
    "w4": {**EMULATED, "quant": Quant.W4},
    "w8a16": {**EMULATED, "quant": Quant.W8A16},
    # The layers in two binaries and another cut at the head, chained in one wrapper; the same past for both widths.
    "parts": {**EMULATED, "quant": Quant.W4, "part_mb": 3, "context": (), "same_past": (224,)},
    "fused fp16": {**UPDATED, "quant": Quant.FP16},
    "fused w8a16": {**UPDATED, "quant": Quant.W8A16},
    "fused slots": {**FUSED, "quant": Quant.FP16, "decode_slots": 3},
    "fused shared": {**UPDATED, "quant": Quant.FP16, "share_weights": True},
    "shared": {**EMULATED, "quant": Quant.W4, "share_weights": True},
}
