"""Tokenisers, chat templates and model folders, without torch."""
