"""A sequence's answer: tokens to text, stop strings, the outputs an asker reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lmpoold.protocol.messages import Dispatch, Output, Usage
from workers.core.detokenise import Detokeniser
from workers.core.stops import StopMatcher

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens to text.

    Attributes:
        decode: the text of token ids, special tokens left out.
        byte_tokens: id -> byte of a byte-fallback tokenizer, empty for any other.
    """

    decode: Decode
    byte_tokens: Mapping[int, int]


ERROR_TYPES = {"cancelled": "cancelled_error", "deadline_exceeded": "timeout_error"}


def logprobs_text(
    token: int, chosen: float, top: Sequence[tuple[int, float]], decode: Decode
) -> str:
    """Return one token's `logprobs` field: its own, and [id, text, logprob] of the best ones.

    The token's own text stands in it too: the output's may lag behind, or have been cut.
    """
    rows = [[token, decode([token]), round(value, 6)] for token, value in top]
    own = {"logprob": round(chosen, 6), "text": decode([token])}
    return json.dumps({**own, "top": rows}, separators=(",", ":"))


class Answer:
    """Turns one request's tokens into outputs.

    A resumed request brings tokens that were emitted before: they are read again without a word, so
    that text held back by the earlier worker is released by this one.
    """

    def __init__(self, dispatch: Dispatch, vocabulary: Vocabulary) -> None:
        """Answer `dispatch` in the words of `vocabulary`."""
        self.dispatch = dispatch
        self.client = dispatch.payload.client
        self._id = dispatch.id
        self._detokeniser = Detokeniser(vocabulary.decode, vocabulary.byte_tokens)
        self._stops = StopMatcher(dispatch.payload.sampling.stop)
        for token in dispatch.tokens[dispatch.payload.prompt_tokens :]:
            self._stops.push(self._detokeniser.push(token))

    def next(
        self, token: int, index: int, finish_reason: str, logprobs: str, cached_tokens: int
    ) -> Output:
        """Return the output for a new token; it may end by a stop string before `finish_reason`.

        Args:
            token: the token.
            index: counted from 0 over all attempts.
            finish_reason: why the sequence ends with this token, "" if it goes on.
            logprobs: the output's field.
            cached_tokens: for `usage`.
        """
        text, stopped = self._stops.push(self._detokeniser.push(token))
        if not (stopped or finish_reason):
            return Output(self._id, index, token, text, logprobs)
        if not stopped:
            more, stopped = self._stops.push(self._detokeniser.flush())
            text += more
            if not stopped:
                text += self._stops.flush()
        reason = "stop" if stopped else finish_reason
        usage = Usage(self.dispatch.payload.prompt_tokens, index + 1, cached_tokens)
        return Output(self._id, index, token, text, logprobs, finish_reason=reason, usage=usage)

    def failed(self, index: int, code: str, message: str) -> Output:
        """Return the error that ends the answer after `index` tokens."""
        kind = ERROR_TYPES.get(code, "server_error")
        return Output(self.dispatch.id, index, error=kind, code=code, message=message)
