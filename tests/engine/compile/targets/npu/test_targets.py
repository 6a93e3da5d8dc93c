"""Every NPU that can be named has its chip's numbers."""

from engine.compile.arguments import Target
from engine.compile.targets.npu import NPU_TARGETS


def test_every_target_but_the_cpu_has_a_chip() -> None:
    assert set(NPU_TARGETS) == set(Target) - {Target.CPU}
    assert (NPU_TARGETS[Target.X_ELITE].soc_model, NPU_TARGETS[Target.X_ELITE].htp_arch) == (60, 73)
    assert NPU_TARGETS[Target.X2_ELITE].htp_arch == 81
