"""One request on this worker: its tokens, its blocks, how far it is computed, when it ends."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Literal

from lmpoold.protocol.hashing import PrefixHash, chain_packed, token_bytes
from lmpoold.protocol.request import Sampling
from workers.core.blocks import BlockId

FinishReason = Literal["stop", "length"]


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """The progress of one request; mutable, owned by the scheduler once it was added.

    Token i has its K/V in slot `i % block_size` of block `block_table[i // block_size]`. The newest
    token is known before its K/V is computed, so a decoding sequence always misses exactly one. A
    resumed request arrives with its earlier outputs already in `tokens`; `prompt_tokens` still
    counts the original prompt alone.
    """

    request_id: str
    attempt: int
    """Which dispatch of the request this is, counting from 1; part of every report about it."""
    prompt_tokens: int
    tokens: list[int] = field(repr=False)  # what people wrote stays out of logs and tracebacks
    """The prompt and everything emitted so far."""
    sampling: Sampling
    priority: int
    """Higher goes first."""
    arrival: int
    """Monotone over one worker's life; breaks ties of priority."""
    deadline_ms: int
    """Unix time; the engine aborts the sequence after it."""
    root: PrefixHash
    """The domain root (model, block size, salt) that `hashes` grow from."""

    packed: bytes = field(default=b"", repr=False)
    """The first of `tokens`, as `token_bytes` packs them; grown by `name_blocks` to cover every
    complete block."""
    hashes: list[PrefixHash] = field(default_factory=list, repr=False)
    """Names of complete blocks, root first; grown by `name_blocks`, generated tokens included."""
    block_table: list[BlockId] = field(default_factory=list, repr=False)
    """The blocks held, root first; empty while waiting."""
    computed: int = 0
    """Tokens whose K/V is in the pool, from the first on."""
    launched: int = 0
    """The same once the steps under way are done; no less than `computed`."""
    promised: int = 0
    """Tokens that the steps under way will append."""
    drawn_at: int = 0
    """The place of the latest promised token among those which its batch samples."""
    published: int = 0
    """Leading blocks of `block_table` that stand in the pool's map under their own name."""
    cached_tokens: int = 0
    """Prompt tokens that the first admission found computed, for `usage`."""
    admissions: int = 0
    """Times it left the waiting line; more than one after a preemption."""
    resident_blocks: int = 0
    """While waiting: leading blocks the pool seemed to hold when last looked at; a hint."""
    limit: int = 0
    """Tokens at which it ends whatever is sampled; set by `Scheduler.add`."""

    @property
    def output_tokens(self) -> int:
        """Tokens emitted so far, over all attempts."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def missing(self) -> int:
        """Known tokens without K/V; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def remaining(self) -> int:
        """Output tokens it may still emit."""
        return self.limit - len(self.tokens)

    @property
    def decoding(self) -> bool:
        """Whether one more token's K/V is all that the next sample needs."""
        return len(self.tokens) - self.computed == 1

    def most_blocks(self, block_size: int) -> int:
        """Return the blocks it can come to hold; the last token it emits is never computed."""
        return -(-(self.limit - 1) // block_size)

    def name_blocks(self, block_size: int) -> None:
        """Extend `hashes` to every complete block of `tokens`; computes only the new names."""
        named, whole = len(self.hashes), len(self.tokens) // block_size
        if named < whole:
            packed, end = len(self.packed) // 4, whole * block_size
            if packed < end:
                self.packed += token_bytes(self.tokens[packed:end])
            fresh = self.packed[4 * block_size * named : 4 * end]
            parent = self.hashes[-1] if named else self.root
            self.hashes += chain_packed(fresh, block_size, parent)


def finish_reason(
    sequence: Sequence, stop_ids: Set[int], max_model_len: int
) -> FinishReason | None:
    """Judge a sequence right after a token was appended; None means it goes on.

    A stop token wins over a limit reached by the same token, as it ended the answer by itself.

    Args:
        sequence: at least one output token emitted.
        stop_ids: the model's end tokens; a request with `ignore_eos` runs past them.
        max_model_len: most tokens, prompt and output together.
    """
    tokens, sampling = sequence.tokens, sequence.sampling
    if tokens[-1] in stop_ids and not sampling.ignore_eos:
        return "stop"
    length = len(tokens)
    if length - sequence.prompt_tokens >= sampling.max_tokens or length >= max_model_len:
        return "length"
    return None
