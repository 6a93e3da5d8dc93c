"""A published Whisper as served beside faster-whisper, on speech that espeak-ng and flite make."""
