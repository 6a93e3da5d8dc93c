"""llama-index embeds, retrieves and reranks; Cohere's client judges the answers of /v2/rerank."""

# servers: embeds reranker

import os
from typing import Any

import cohere
from checking import base_url, check, run
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.cohere_rerank import CohereRerank

TEXTS = ["The capital of China is Beijing.", "Gravity attracts bodies.", "A cat sat on the mat.", "Rain in Oslo."]
KEY = os.environ["OPENAI_API_KEY"]


def embedder(**given: Any) -> OpenAILikeEmbedding:
    """Embeddings of the live server."""
    return OpenAILikeEmbedding(
        model_name="embedder", api_base=base_url("embeds"), api_key=KEY, max_retries=0, timeout=120, **given
    )


def reranker() -> CohereRerank:
    """A postprocessor that the live server scores for."""
    return CohereRerank(model="reranker", api_key=KEY, base_url=base_url("reranker").removesuffix("/v1"), top_n=2)


@check
def texts_in_batches() -> None:
    found = embedder(embed_batch_size=3).get_text_embedding_batch(TEXTS)
    assert [len(vector) for vector in found] == [64] * 4
    alone = embedder().get_query_embedding(TEXTS[1])
    assert max(abs(a - b) for a, b in zip(found[1], alone, strict=True)) < 1e-5


@check
async def asynchronous_and_shorter() -> None:
    found = await embedder(dimensions=16).aget_text_embedding_batch(TEXTS)
    assert [len(vector) for vector in found] == [16] * 4


@check
def an_index_finds_the_text_itself() -> None:
    index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=embedder())
    for text in TEXTS:
        nearest, second = index.as_retriever(similarity_top_k=2).retrieve(text)
        assert nearest.text == text and nearest.score > 0.999 > second.score


@check
def a_reranker_orders_nodes() -> None:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    found = reranker().postprocess_nodes(nodes, query_bundle=QueryBundle("Where does it rain?"))
    assert len(found) == 2 and found[0].score >= found[1].score > 0
    assert {node.text for node in found} < set(TEXTS)


@check
def cohere_parses_every_version() -> None:
    address = base_url("reranker").removesuffix("/v1")
    for client in (cohere.Client(api_key=KEY, base_url=address), cohere.ClientV2(api_key=KEY, base_url=address)):
        answer = client.rerank(model="reranker", query="rain", documents=TEXTS, top_n=3)
        scores = [result.relevance_score for result in answer.results]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True) and answer.id
        assert len({result.index for result in answer.results}) == 3


@check
def cohere_is_told_what_is_wrong() -> None:
    client = cohere.ClientV2(api_key=KEY, base_url=base_url("reranker").removesuffix("/v1"))
    try:
        client.rerank(model="reranker", query="rain", documents=["fine", "far too long " * 300])
    except cohere.errors.BadRequestError as error:
        assert "documents[1]" in str(error.body)
        return
    raise AssertionError("not refused")


if __name__ == "__main__":
    run()
