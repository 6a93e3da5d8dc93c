"""How each chat template of llama.cpp that shows tools writes calls: what was found, compared with what it renders."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """Style of the arguments, what is in front of the first name, what is behind the last arguments, whether a turn may
    have several calls, and what opens the reasoning."""

    style: str
    before: str
    behind: str
    several: bool
    reasoning: str


TEMPLATES = {
    "Apertus-8B-Instruct": Written("json", '<|tools_prefix|>[{"', "}]<|tools_suffix|>", True, "<|inner_prefix|>"),
    "Apriel-1.6-15b-Thinker-fixed": Written(
        "json", '\n<tool_calls>[{"name": "', "}]</tool_calls>", True, "Here are my reasoning steps:"
    ),
    "Bielik-11B-v3.0-Instruct": Written("json", '\n<tool_call>\n{"name": "', "}\n</tool_call>", True, "<think>"),
    "ByteDance-Seed-OSS": Written(
        "tagged", "<seed:tool_call>\n<function=", "</function>\n</seed:tool_call>", True, "<seed:think>"
    ),
    "Cohere2MoE": Written(
        "json",
        '<|START_ACTION|>[\n    {"tool_call_id": "⟨number⟩", "tool_name": "',
        "}\n]<|END_ACTION|>",
        True,
        "<|START_THINKING|>",
    ),
    "CohereForAI-c4ai-command-r-plus-tool_use": Written(
        "json", '\nAction:\n```json\n[\n    {\n        "tool_name": "', "\n    }\n]```", True, ""
    ),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": Written(
        "json",
        '<|START_ACTION|>[\n    {"tool_call_id": "⟨number⟩", "tool_name": "',
        "}\n]<|END_ACTION|>",
        True,
        "<|START_THINKING|>",
    ),
    "GLM-4.6": Written("tagged", "<tool_call>", "</tool_call>", True, "<think>"),
    "GLM-4.7-Flash": Written("tagged", "<tool_call>", "</tool_call>", True, "<think>"),
    "GigaChat3-10B-A1.8B": Written("json", '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "', "}", False, ""),
    "GigaChat3.1-10B-A1.8B": Written("json", '<|function_call|>{"name": "', "}", False, ""),
    "Kimi-K2-Instruct": Written(
        "json",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
        "<|tool_call_end|><|tool_calls_section_end|>",
        True,
        "",
    ),
    "Kimi-K2-Thinking": Written(
        "json",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
        "<|tool_call_end|><|tool_calls_section_end|>",
        True,
        "<think>",
    ),
    "Kimi-K3": Written(
        "typed",
        '<|open|>tools<|sep|><|open|>call tool="',
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        True,
        "<|open|>think<|sep|>",
    ),
    "LFM2-8B-A1B": Written("literal", "<|tool_call_start|>[", ")]<|tool_call_end|>", True, ""),
    "LFM2.5-8B-A1B": Written("literal", "<|tool_call_start|>[", ")]<|tool_call_end|>", True, "<think>"),
    "LFM2.5-Instruct": Written("literal", "<|tool_call_start|>[", ")]<|tool_call_end|>", True, ""),
    "MiMo-VL": Written("json", '<tool_call>\n{"name": "', "}\n</tool_call>", True, ""),
    "MiniMax-M1": Written("json", '<tool_calls>\n{"name": "', "}\n</tool_calls>", True, ""),
    "MiniMax-M2": Written(
        "tagged", '\n<minimax:tool_call>\n<invoke name="', "</invoke>\n</minimax:tool_call>", True, "<think>"
    ),
    "MiniMax-M3": Written(
        "nested",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="',
        "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        True,
        "<mm:think>",
    ),
    "Mistral-Small-3.2-24B-Instruct-2506": Written("json", "[TOOL_CALLS]", "", True, ""),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Written(
        "tagged", "<tool_call>\n<function=", "</function>\n</tool_call>\n", True, "<think>"
    ),
    "NVIDIA-Nemotron-Nano-v2": Written("json", '<TOOLCALL>[{"name": "', "}]</TOOLCALL>", True, "<think>"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": Written(
        "json", '<tool_call>\n{"name": "', "}\n</tool_call>", True, ""
    ),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": Written(
        "json", '<tool_call>\n{"name": "', "}\n</tool_call>", True, ""
    ),
    "Qwen-QwQ-32B": Written("json", '<tool_call>\n{"name": "', "}\n</tool_call>", True, "<think>"),
    "Qwen-Qwen2.5-7B-Instruct": Written("json", '<tool_call>\n{"name": "', "}\n</tool_call>", True, ""),
    "Qwen-Qwen3-0.6B": Written("json", '<tool_call>\n{"name": "', "}\n</tool_call>", True, "<think>"),
    "Qwen3-Coder": Written("tagged", "<tool_call>\n<function=", "</function>\n</tool_call>", True, ""),
    "Qwen3.5-4B": Written("tagged", "<tool_call>\n<function=", "</function>\n</tool_call>", True, "<think>"),
    "Reka-Edge": Written("json", ' <tool_call>\n{"name": "', "}\n</tool_call>", True, "<think>"),
    "Spark2.5": Written("tagged", "<tool_call>", "</tool_call>", True, "<think>"),
    "StepFun3.5-Flash": Written("tagged", "<tool_call>\n<function=", "</function>\n</tool_call>", True, "<think>"),
    "deepseek-ai-DeepSeek-V3.2": Written(
        "typed",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="',
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        True,
        "<think>",
    ),
    "deepseek-ai-DeepSeek-V4-Flash-0731": Written(
        "typed",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="',
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        True,
        "<think>",
    ),
    "deepseek-ai-DeepSeek-V4": Written(
        "typed",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="',
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        True,
        "<think>",
    ),
    "fireworks-ai-llama-3-firefunction-v2": Written("json", ' functools[{"name": "', "}]", True, ""),
    "google-gemma-4-31B-it-interleaved": Written(
        "literal", "<|tool_call>call:", "}<tool_call|>", True, "<|channel>thought"
    ),
    "google-gemma-4-31B-it": Written("literal", "<|tool_call>call:", "}<tool_call|>", True, "<|channel>thought"),
    "ibm-granite-granite-3.3-2B-Instruct": Written("json", '<|tool_call|>[{"name": "', "}]", True, "<think>"),
    "ibm-granite-granite-4.0": Written("json", '<tool_call>\n{"name": "', "}\n</tool_call>", True, ""),
    "ibm-granite-granite-4.1": Written("json", '<tool_call>\n{"name": "', "}\n</tool_call>", True, ""),
    "inclusionai-ling-3.0-flash": Written("tagged", "<tool_call>", "\n</tool_call>", True, "<think>"),
    "llama-cpp-deepseek-r1": Written(
        "json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        True,
        "<think>",
    ),
    "meetkai-functionary-medium-v3.1": Written("json", "<function=", "</function>", True, ""),
    "meetkai-functionary-medium-v3.2": Written("json", ">>>", "", True, ""),
    "meta-llama-Llama-3.1-8B-Instruct": Written("json", '{"name": "', "}", False, ""),
    "meta-llama-Llama-3.2-3B-Instruct": Written("json", '{"name": "', "}", False, ""),
    "meta-llama-Llama-3.3-70B-Instruct": Written("json", '{"name": "', "}", False, ""),
    "mistralai-Ministral-3-14B-Reasoning-2512": Written("json", "[TOOL_CALLS]", "", True, "[THINK]"),
    "mistralai-Mistral-Nemo-Instruct-2407": Written("json", '[TOOL_CALLS][{"name": "', ', "id": "⟨id⟩"}]', True, ""),
    "moonshotai-Kimi-K2": Written(
        "json",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
        "<|tool_call_end|><|tool_calls_section_end|>",
        True,
        "",
    ),
    "muse-glimmer": Written("tagged", " to=", "</atem:invoke>\n</atem:function_calls>", True, "to=self<|message|>"),
    "openai-gpt-oss-120b": Written("json", " to=functions.", "", False, "<|channel|>analysis<|message|>"),
    "openbmb-MiniCPM5-1B": Written("wrapped", '<function name="', "</function>", True, "<think>"),
    "poolside-Laguna-S-2.1": Written("tagged", "<tool_call>", "</tool_call>", True, "<think>"),
    "poolside-Laguna-XS-2.1": Written("tagged", "<tool_call>", "</tool_call>\n", True, "<think>"),
    "poolside-Laguna-XS.2": Written("tagged", "<tool_call>", "</tool_call>\n", True, "<think>"),
    "tencent-Hy3": Written(
        "tagged",
        "<tool_calls:opensource>\n<tool_call:opensource>",
        "</tool_call:opensource>\n</tool_calls:opensource>",
        True,
        "<think:opensource>",
    ),
    "unsloth-Apriel-1.5": Written(
        "json", '\n<tool_calls>[{"name": "', "}]</tool_calls>", True, "Here are my reasoning steps:"
    ),
    "unsloth-mistral-Devstral-Small-2507": Written("json", "[TOOL_CALLS]", "", True, ""),
    "upstage-Solar-Open-100B": Written(
        "json", "<|tool_calls|><|tool_call:begin|>⟨id⟩<|tool_call:name|>", "<|tool_call:end|>", True, "<|think|>"
    ),
}
