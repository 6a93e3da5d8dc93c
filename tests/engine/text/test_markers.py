"""Markers: what a chat template says about tools."""

from engine.text.markers import find_markers


def test_which_templates_take_tools() -> None:
    assert "tool_call" in find_markers("{% if tools %}<tool_call>{% endif %}")
    assert "tool_call" in find_markers("{% if tools %}[TOOL_CALLS]{% endif %}")
    assert "tool_call" not in find_markers("{% if tools %}<function>{% endif %}")
    assert "tool_call" not in find_markers("{{ messages }}")


def test_reasoning_counts_only_where_the_template_writes_both_markers() -> None:
    assert find_markers("{{ '<think>' }} {{ '</think>' }}") == {"reasoning": ("<think>", "</think>")}
    for template in ("{{ '<think>' }}", "{{ '</think>' }}", "{{ messages }}"):
        assert find_markers(template) == {}


def test_a_pair_is_the_formats_own() -> None:
    both = find_markers("{% if tools %}<tool_call>{% endif %}<think></think>")
    assert both == {"tool_call": ("<tool_call>", "</tool_call>"), "reasoning": ("<think>", "</think>")}
