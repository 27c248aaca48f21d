"""From ingress entries to route calls: reading, tokenising, hashing. Runs off the event loop."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lmpoold.core.admission import Limits, Refusal, decide_admission
from lmpoold.protocol.errors import InvalidRequest
from lmpoold.protocol.hashing import PrefixHash, chain_packed, domain_root, token_bytes
from lmpoold.protocol.messages import Payload, decode_tokens
from lmpoold.protocol.request import Request, answer_stream, read_request
from lmpoold.protocol.views import RouteCall
from lmpoold.store.streams import Entry
from lmpoold.text.tokenizer import TextModel

EXCERPT_BYTES = 500
"""How much of an unreadable entry `dead` keeps."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that is answered with an error instead of being routed."""

    id: str
    source: str
    client: str
    code: str
    message: str
    excerpt: str


def excerpt(values: Mapping[bytes, bytes]) -> str:
    """Return the beginning of an entry as text for `dead`; `salt` is a secret and left out."""
    shown = {
        name[:60].decode("utf-8", "backslashreplace"): value[:EXCERPT_BYTES].decode(
            "utf-8", "backslashreplace"
        )
        for name, value in values.items()
        if name != b"salt"
    }
    return json.dumps(shown, ensure_ascii=True)[: 2 * EXCERPT_BYTES]


class Reader:
    """Turns requests into route calls for one model and block size. Safe to use from threads."""

    def __init__(
        self,
        text: TextModel,
        *,
        model: str,
        fingerprint: str,
        block_size: int,
        limits: Limits,
        ids_fit: bool = False,
    ) -> None:
        """Read for `model`, whose blocks hold `block_size` tokens; `ids_fit` as `text` has it."""
        self._text = text
        self._model = model
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._limits = limits
        self._ids_fit = ids_fit
        self._common_root = domain_root(fingerprint, block_size)

    def root(self, salt: str) -> PrefixHash:
        """Return the domain root for a salt."""
        return domain_root(self._fingerprint, self._block_size, salt) if salt else self._common_root

    def read(self, entries: Sequence[Entry]) -> list[RouteCall | Refused]:
        """Read, tokenise and hash entries; each gives a call or a refusal, in order."""
        return [self._read(entry, values) for entry, values in entries]

    def resume(
        self, request_id: str, payload_text: bytes, tokens: bytes, attempt: int, emitted: bytes
    ) -> RouteCall:
        """Return the call for a parked request, with what it has emitted as part of its prompt."""
        payload = Payload.decode(payload_text)
        packed = tokens[: 4 * payload.prompt_tokens] + token_bytes(decode_tokens(emitted))
        count = len(packed) // 4
        left = payload.sampling.max_tokens - (count - payload.prompt_tokens)
        return RouteCall(
            id=request_id,
            source="parked",
            prompt_tokens=count,
            max_tokens=max(1, left),
            hashes=chain_packed(packed, self._block_size, self.root(payload.salt)),
            client=payload.client,
            payload=payload_text.decode(),
            tokens=packed,
            deadline_ms=payload.deadline_ms,
            attempt=attempt,
            priority=payload.priority,
            origin=payload.origin,
        )

    def _read(self, entry: str, values: Mapping[bytes, bytes]) -> RouteCall | Refused:
        request_id, client = answer_stream(entry, values)
        try:
            request = read_request(entry, values)
            token_ids = self._tokens(request)
        except InvalidRequest as error:
            return Refused(request_id, entry, client, error.code, str(error), excerpt(values))
        ids_fit = request.tokens is None and self._ids_fit
        allowed = decide_admission(request, token_ids, self._model, self._limits, ids_fit=ids_fit)
        if isinstance(allowed, Refusal):
            return Refused(
                request_id, entry, client, allowed.code, allowed.message, excerpt(values)
            )
        return self._call(entry, request, token_ids, allowed)

    def _tokens(self, request: Request) -> Sequence[int]:
        if request.tokens is not None:
            return request.tokens
        if request.messages is not None:
            return self._text.encode_chat(request.messages)
        assert request.prompt is not None
        return self._text.encode(request.prompt)

    def _call(
        self, entry: str, request: Request, token_ids: Sequence[int], max_tokens: int
    ) -> RouteCall:
        # An entry id begins with the server's clock in milliseconds: the deadline counts from it.
        arrived_ms = int(entry.partition("-")[0])
        deadline_ms = arrived_ms + request.deadline_ms if request.deadline_ms else 0
        # The seed is fixed here, once: a retry on another worker must draw the same tokens.
        seed = request.sampling.seed if request.seed_given else secrets.randbits(63)
        payload = Payload(
            client=request.client,
            prompt_tokens=len(token_ids),
            sampling=replace(request.sampling, max_tokens=max_tokens, seed=seed),
            priority=request.priority,
            deadline_ms=deadline_ms,
            salt=request.salt,
            origin=-1 if request.origin is None else request.origin,
        )
        packed = token_bytes(token_ids)
        return RouteCall(
            id=request.id,
            source=entry,
            prompt_tokens=len(token_ids),
            max_tokens=max_tokens,
            hashes=chain_packed(packed, self._block_size, self.root(request.salt)),
            client=request.client,
            payload=payload.encode(),
            tokens=packed,
            deadline_ms=deadline_ms,
            priority=payload.priority,
            origin=payload.origin,
        )
