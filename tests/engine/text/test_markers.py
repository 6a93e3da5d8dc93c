"""Markers: what a chat template says about tools."""

from engine.text.markers import find_markers


def test_which_templates_take_tools() -> None:
    assert "tool_call" in find_markers("{% if tools %}<tool_call>{% endif %}")
    assert "tool_call" in find_markers("{% if tools %}[TOOL_CALLS]{% endif %}")
    assert "tool_call" not in find_markers("{% if tools %}<function>{% endif %}")
    assert "tool_call" not in find_markers("{{ messages }}")
