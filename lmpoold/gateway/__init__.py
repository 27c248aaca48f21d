"""The HTTP door: OpenAI's requests over a pool. Beside lmpoold, never inside it."""
