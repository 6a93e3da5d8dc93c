"""langchain's standard integration tests of a published model, by any server that OPENAI_BASE_URL names."""

from standard_suite import Declared


class TestPublished(Declared):
    """/v1/chat/completions of a model that may fail: how much of this it passes is compared between servers."""

    __test__ = True

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:  # type: ignore[override]
        return {"invoke": [], "stream": []}
