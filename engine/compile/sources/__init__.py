"""What a bundle is made of: a Hugging Face folder or a GGUF file, its tensors, its text and what it is for."""
