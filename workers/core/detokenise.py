"""Tokens to text, one at a time, without ever taking a character back.

Theory of operation. The text of a token depends on its neighbours, so a new token is decoded behind
a window of the tokens before it, and only what the window's text has gained is released. Three
things make that exact:

- Decoders treat the beginning of a text differently (a leading space is stripped, a `##` is kept).
  The window has older tokens in front, whose text is out already. Tokens that decode to nothing
  wherever they stand (skipped specials, ids outside the vocabulary) never enter it, so a window of
  n tokens has n tokens' worth of context.
- Byte-level decoders show a character whose bytes are incomplete as one U+FFFD at the end; that one
  is held back. A window that begins inside a character is in step again where that character
  ends, and a held U+FFFD begins at most three bytes before the end: `_CONTEXT` covers it. So no run
  of bad bytes makes the window or the held text grow.
- Byte-fallback decoders (`<0xE4>` tokens) judge a whole run of byte tokens at once: as text if all
  of it is UTF-8, else as one U+FFFD per byte. A run that is UTF-8 so far is held until it ends, for
  its last byte may still turn all of it; once broken, it can never be mended, and each byte is
  released as U+FFFD at once.

The one exception: of a run longer than `MAX_RUN_TOKENS` that is UTF-8 so far, whole characters are
released, for a reader should not wait without bound. If such a run breaks off later, the decoder
would replace those characters; here they stay, and only the bytes after them are replaced.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping

MAX_RUN_TOKENS = 64
"""Byte tokens of one unbroken run that are held at most, but for the rest of a character."""

_WINDOW = 16  # tokens decoded a push at most; beyond it, the oldest are dropped
_CONTEXT = 8  # tokens kept then
_BAD = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_tokens(vocab: Mapping[str, int], decode: Callable[[list[int]], str]) -> dict[int, int]:
    """Find the tokens that stand for one byte each in a byte-fallback tokenizer.

    A token merely named like one, under another decoder, decodes to its own name and does not
    count.

    Args:
        vocab: token -> id, added tokens included.
        decode: as for `Detokeniser`.
    Returns: id -> byte; empty for tokenizers without byte fallback.
    """
    found = {}
    for name, token in vocab.items():
        if match := _BYTE_TOKEN.fullmatch(name):
            byte = int(match[1], 16)
            shown = chr(byte) if byte < 0x80 else _BAD
            if decode([token]) in (shown, shown.lstrip(" ")):
                found[token] = byte
    return found


class _ByteRun:
    """Consecutive byte tokens."""

    def __init__(self, start: int) -> None:
        self.start = start  # where in the window it begins
        self.held = bytearray()  # bytes whose text is not out yet
        self.broken = False  # no byte that may follow makes it UTF-8
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

    @property
    def between_characters(self) -> bool:
        return not self._utf8.getstate()[0]

    def take(self, byte: int) -> None:
        self.held.append(byte)
        if not self.broken:
            try:
                self._utf8.decode(bytes((byte,)))
            except UnicodeDecodeError:
                self.broken = True

    def last_character(self) -> int:
        """Return the bytes of its last character, between characters."""
        size = 1
        while self.held[-size] & 0xC0 == 0x80:
            size += 1
        return size


class Detokeniser:
    """Turns one answer's tokens into text piece by piece.

    The pieces of `push` and `flush` joined equal `decode` of all the tokens, byte for byte, with
    the exception named at the top of this module. Apart from the two kinds of byte handling, more
    tokens must only append to the decoder's text. To resume an answer, push its tokens again and
    drop what comes out.
    """

    def __init__(self, decode: Callable[[list[int]], str], byte_tokens: Mapping[int, int]) -> None:
        """Begin an empty text.

        Args:
            decode: ids -> text, special tokens skipped, unknown ids ignored; a pure function.
            byte_tokens: from the function of that name; empty without byte fallback.
        """
        self._decode = decode
        self._bytes = byte_tokens
        self._ids: list[int] = []  # the window: context, then what is held
        self._text = ""  # its text when its last token was no byte token
        self._released = 0  # leading characters of its text that are out
        self._run: _ByteRun | None = None

    def push(self, token: int) -> str:
        """Take one token; return the text that no later token can change, often the token's own."""
        byte = self._bytes.get(token)
        if byte is not None:
            return self._push_byte(token, byte)
        rest = ""
        if self._run is not None:
            if self._adds_nothing(token):
                return ""
            rest = self._end_run()
        text = self._decode([*self._ids, token])
        if text == self._text and self._adds_nothing(token):
            return ""
        self._ids.append(token)
        unsure = not self._bytes and text.endswith(_BAD)
        settled = max(len(text) - unsure, self._released)
        piece, held = text[self._released : settled], text[settled:]
        if len(self._ids) > _WINDOW:
            del self._ids[:-_CONTEXT]
            text = self._decode(self._ids)
            if not text.endswith(held):  # it stands before all of these tokens: none will change it
                piece, held = piece + held, ""
        self._text, self._released = text, len(text) - len(held)
        return rest + piece

    def flush(self) -> str:
        """Return the text that was held back: no more tokens come."""
        rest = self._end_run()
        text = self._decode(self._ids)
        piece = text[self._released :]
        self._text, self._released = text, len(text)
        return rest + piece

    def _push_byte(self, token: int, byte: int) -> str:
        run = self._run = self._run or _ByteRun(len(self._ids))
        run.take(byte)
        self._ids.append(token)
        if run.broken:
            return self._give_up(run)
        if len(run.held) < MAX_RUN_TOKENS or not run.between_characters:
            return ""
        piece = self._decode(self._ids)[self._released :]
        # The rest of the run is judged with its context, so that has to be UTF-8 by itself.
        self._restart(self._ids[-run.last_character() :])
        run.start = len(self._ids)
        run.held.clear()
        return piece

    def _end_run(self) -> str:
        """Leave a run, if in one; return what is held of it and will not show up in the window."""
        run, self._run = self._run, None
        if run is not None and not run.between_characters:
            return self._give_up(run)
        return ""

    def _give_up(self, run: _ByteRun) -> str:
        """Release what is held of a run as one U+FFFD per byte."""
        piece = _BAD * len(run.held)
        run.held.clear()
        # No later token looks at the text of this run, so one byte of it will do as context.
        self._restart([*self._ids[: run.start], self._ids[-1]])
        return piece

    def _restart(self, context: list[int]) -> None:
        """Begin a new window of tokens whose text is out."""
        self._ids = context
        self._text = self._decode(context)
        self._released = len(self._text)

    def _adds_nothing(self, token: int) -> bool:
        """Tell a token that the decoder skips from one whose text is merely stripped here.

        Alone, a lone space may decode to nothing too, but two of them do not. And a token that is
        not skipped parts the byte tokens around it.
        """
        if self._decode([token]) or self._decode([token, token]):
            return False
        byte_to_token = {byte: token for token, byte in self._bytes.items()}
        lead, tail = byte_to_token.get(0xC3), byte_to_token.get(0xA9)
        if lead is None or tail is None:
            return True
        return self._decode([lead, token, tail]) == self._decode([lead, tail])
