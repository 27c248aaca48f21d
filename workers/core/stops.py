"""Stop strings in a stream of text: the earliest match ends it, and no part of a match gets out."""

from __future__ import annotations


class StopMatcher:
    """Cuts a text at the first of its stop strings, however the text is sliced.

    A match counts from where it begins. While a candidate that began earlier may still come true, a
    later match that is already complete has to wait for it; so the outcome depends on the text
    alone, never on how it was cut. What is held back is a proper prefix of one stop string, hence
    shorter than the longest of them.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Watch for `stops`; none of them empty (ValueError), no stops for a plain pass-through."""
        if "" in stops:
            raise ValueError("a stop string is empty: it would match everywhere")
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing is released after that."""
        return self._stopped

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text.

        Returns: the text that can be released, and whether a stop string ends it.
        """
        if self._stopped:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        match = self._first_match(text)
        # Only these last positions can begin a stop string that goes on past the end of the text.
        for start in range(max(0, len(text) - self._longest + 1), match):
            tail = text[start:]
            if any(stop.startswith(tail) for stop in self._stops):
                self._held = tail
                return text[:start], False
        self._held = ""
        self._stopped = match < len(text)
        return text[:match], self._stopped

    def flush(self) -> str:
        """Return the rest, as no more text comes; a match that was waiting cuts it."""
        held, self._held = self._held, ""
        match = self._first_match(held)
        self._stopped = self._stopped or match < len(held)
        return held[:match]

    def _first_match(self, text: str) -> int:
        found = (text.find(stop) for stop in self._stops)
        return min((at for at in found if at >= 0), default=len(text))
