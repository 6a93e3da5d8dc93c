"""A published Whisper as served beside faster-whisper and whisper.cpp, on speech of programs and of a person."""
