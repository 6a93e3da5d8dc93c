"""OpenAI's API: chats, completions, embeddings and responses, each with its body, rules, writer and routes."""
