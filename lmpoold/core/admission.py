"""Whether a request can be served at all, once its length in tokens is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmpoold.protocol.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model allows: tokens of prompt and output together, and its vocabulary."""

    max_model_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served: OpenAI's code where one exists, and what to change."""

    code: str
    message: str


def decide_admission(
    request: Request,
    token_ids: Sequence[int],
    served: str,
    limits: Limits,
    *,
    ids_fit: bool = False,
) -> int | Refusal:
    """Return how many tokens the request may be given, or why it is refused.

    A `max_tokens` that was not given shrinks to what the context leaves; one that was given and
    does not fit refuses the request.

    Args:
        request: as read from ingress.
        token_ids: its prompt.
        served: the pool's model name.
        limits: of that model.
        ids_fit: whether all ids are known to lie in its vocabulary: looking at each takes time.
    """
    length, longest = len(token_ids), limits.max_model_len
    if request.model and request.model != served:
        return Refusal("model_not_found", f"this pool serves {served}, not {request.model[:80]!r}")
    if length == 0:
        return Refusal("invalid_request", "the prompt has no tokens: there is nothing to continue")
    if length >= longest:
        return Refusal(
            "context_length_exceeded",
            f"the prompt has {length} tokens and the model's context {longest}, output included; "
            "shorten the prompt",
        )
    wanted = request.sampling.max_tokens
    if request.max_tokens_given and length + wanted > longest:
        return Refusal(
            "context_length_exceeded",
            f"the prompt's {length} tokens and max_tokens {wanted} exceed the model's context of "
            f"{longest}; ask for at most {longest - length} or shorten the prompt",
        )
    if not ids_fit and max(token_ids) >= limits.vocab_size:
        return Refusal(
            "invalid_request",
            f"token id {max(token_ids)} lies outside the vocabulary of {limits.vocab_size}",
        )
    return min(wanted, longest - length)
