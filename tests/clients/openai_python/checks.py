"""openai-python judges."""

# servers: demo limited full mistral phi llama thinks

from checking import MODEL, check, run
from openai import OpenAI

client = OpenAI(max_retries=0, timeout=120)


@check
def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello there"}])
    assert answer.choices[0].message.content == "Hello there"


if __name__ == "__main__":
    run()
