"""Several answers that come at once, printed one after the other."""

from __future__ import annotations

import asyncio


class AnswerPrinter:
    """Prints one answer once it is its turn: first what has come so far, then the rest live.

    Attributes:
        text: the answer so far.
    """

    def __init__(self, question: str, *, silent: bool) -> None:
        """Print the answer to `question`, or with `silent` collect it alone."""
        self.text = ""
        self._question = question
        self._silent = silent
        self._grown = asyncio.Event()
        self._ended = False

    def add(self, text: str) -> None:
        """Take what the answer gained."""
        self.text += text
        self._grown.set()

    def end(self) -> None:
        """Say that nothing more will come."""
        self._ended = True
        self._grown.set()

    async def run(self, turn: asyncio.Event | None) -> None:
        """Wait for the turn, then print until the end."""
        if turn is not None:
            await turn.wait()
        if self._silent:
            return
        print(f"  Q: {self._question}\n  A: ", end="", flush=True)
        printed = 0
        while printed < len(self.text) or not self._ended:
            self._grown.clear()
            new = self.text[printed:]
            printed += len(new)
            print(new.replace("\n", "\n     "), end="", flush=True)
            if not self._ended:
                await self._grown.wait()
        print(flush=True)
