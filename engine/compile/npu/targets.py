"""The chips graphs can be compiled for. Adding one adds one line here and one name in `arguments.Target`."""

from engine.compile.arguments import Target
from engine.graphs.onnx_qnn import HtpTarget

# SoC numbers and Hexagon versions as Qualcomm's tools list them; the laptops' are X Elite, X Plus and X2 Elite.
NPU_TARGETS = {
    Target.X_ELITE: HtpTarget(60, 73),
    Target.X_PLUS: HtpTarget(60, 73),
    Target.X2_ELITE: HtpTarget(88, 81),
    Target.GEN8_2: HtpTarget(43, 73),
    Target.GEN8_3: HtpTarget(57, 75),
    Target.GEN8_ELITE: HtpTarget(69, 79),
    Target.GEN8_ELITE_5: HtpTarget(87, 81),
}
