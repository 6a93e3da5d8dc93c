"""Checkpoints of Whisper in each of their forms: Hugging Face folders, CTranslate2's and whisper.cpp's files."""
