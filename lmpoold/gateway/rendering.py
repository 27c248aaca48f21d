"""From the pool's outputs to OpenAI's JSON, whole or in chunks. Pure.

Answers and events are put together from pieces of JSON: all but the text of a chunk is the same in
each, and building and walking a tree of dicts costs several times as much.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lmpoold.gateway.reading import Call
from lmpoold.protocol.messages import Output, Usage

DONE = b"data: [DONE]\n\n"
OWNER = "lmpool"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def to_json(value: Any) -> bytes:
    """Return a body; half a surrogate pair, which UTF-8 has no bytes for, becomes `?`."""
    return _bytes(_encode(value))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def event(value: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"


def sum_usage(usages: Sequence[Usage | None], n: int) -> str:
    """Return OpenAI's `usage`, as JSON: each prompt counts once, however many choices it has.

    Args:
        usages: by choice; None for one that did not end well.
        n: choices a prompt.
    """
    firsts = [usage for usage in usages[::n] if usage is not None]
    prompt = sum(usage.prompt_tokens for usage in firsts)
    completion = sum(usage.completion_tokens for usage in usages if usage is not None)
    cached = sum(usage.cached_tokens for usage in firsts)
    return (
        f'{{"prompt_tokens":{prompt},"completion_tokens":{completion},'
        f'"total_tokens":{prompt + completion},'
        f'"prompt_tokens_details":{{"cached_tokens":{cached}}}}}'
    )


def model_row(name: str, created_s: int, max_model_len: int) -> dict[str, Any]:
    """Return one model of the list."""
    row = {"id": name, "object": "model", "created": created_s, "owned_by": OWNER}
    return {**row, "max_model_len": max_model_len}


def _token_row(text: str, logprob: float) -> dict[str, Any]:
    # A token may be a part of a character: its bytes cannot be told from its text then.
    spelled = None if REPLACEMENT in text else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": logprob, "bytes": spelled}


def chat_logprobs(output: Output) -> dict[str, Any]:
    """Return one token of a chat choice's `logprobs.content`."""
    said = json.loads(output.logprobs)
    top = [_token_row(text, logprob) for _, text, logprob in said["top"]]
    return {**_token_row(said["text"], said["logprob"]), "top_logprobs": top}


@dataclass(slots=True)
class _Offsets:
    """Where the next token of a completion begins in its text."""

    at: int = 0

    def rows(self, outputs: Sequence[Output], top: int) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        columns["text_offset"] = []
        for output in outputs:
            said = json.loads(output.logprobs)
            columns["tokens"].append(said["text"])
            columns["token_logprobs"].append(said["logprob"])
            best = {text: logprob for _, text, logprob in reversed(said["top"])}
            columns["top_logprobs"].append(best if top else None)
            columns["text_offset"].append(self.at)
            self.at += len(said["text"])
        return columns


@dataclass(slots=True)
class Rendering:
    """One call's answer: the parts that do not change, and how outputs become choices.

    Attributes:
        id: of the answer, as the caller sees it.
        model: as the caller named it.
        created_s: unix seconds.
    """

    call: Call
    id: str
    model: str
    created_s: int
    _offsets: dict[int, _Offsets] = field(default_factory=dict)
    _head: str = field(init=False)
    """The answer, or each event of it, up to its first choice."""

    def __post_init__(self) -> None:
        kind = "chat.completion" if self._chat else "text_completion"
        if self._chat and self.call.stream:
            kind += ".chunk"
        frame = {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}
        self._head = _encode(frame)[:-1] + ',"choices":['

    @property
    def _chat(self) -> bool:
        return self.call.kind == "chat"

    def _choice(self, index: int, said: str, outputs: Sequence[Output]) -> str:
        """Return one choice; `said` is its member with the text."""
        logprobs = "null"
        if self.call.logprobs is not None:
            logprobs = _encode(self._logprobs(index, self.call.logprobs, outputs))
        last = outputs[-1].finish_reason
        reason = _encode(last) if last else "null"
        return f'{{"index":{index},{said},"logprobs":{logprobs},"finish_reason":{reason}}}'

    def _logprobs(self, index: int, top: int, outputs: Sequence[Output]) -> dict[str, Any]:
        rows = [output for output in outputs if output.logprobs]
        if self._chat:
            return {"content": [chat_logprobs(output) for output in rows], "refusal": None}
        return self._offsets.setdefault(index, _Offsets()).rows(rows, top)

    def whole(self, answers: Sequence[Sequence[Output]]) -> bytes:
        """Return the body of an answer that is not streamed; all outputs by choice."""
        choices = []
        for index, outputs in enumerate(answers):
            said = _encode("".join([output.text for output in outputs]))
            if self._chat:
                said = f'"message":{{"role":"assistant","content":{said},"refusal":null}}'
            else:
                said = f'"text":{said}'
            choices.append(self._choice(index, said, outputs))
        usage = sum_usage([outputs[-1].usage for outputs in answers], self.call.n)
        return _bytes(f'{self._head}{",".join(choices)}],"usage":{usage}}}')

    def chunk(self, index: int, output: Output) -> bytes:
        """Return the event of one output of a choice, b"" if it shows nothing yet.

        The first output of a chat choice is preceded by the chunk that names the role.
        """
        opening = b""
        if self._chat and output.index == 0:
            opening = self._event(
                f'{{"index":{index},"delta":{{"role":"assistant","content":""}},'
                '"logprobs":null,"finish_reason":null}'
            )
        if not (output.text or output.finish_reason or output.logprobs):
            return opening
        said = _encode(output.text)
        if not self._chat:
            said = f'"text":{said}'
        elif output.text or not output.finish_reason:
            said = f'"delta":{{"content":{said}}}'
        else:
            said = '"delta":{}'
        return opening + self._event(self._choice(index, said, (output,)))

    def _event(self, choices: str, usage: str = "null") -> bytes:
        tail = f',"usage":{usage}' if self.call.include_usage else ""
        return _bytes(f"data: {self._head}{choices}]{tail}}}\n\n")

    def usage_chunk(self, usages: Sequence[Usage | None]) -> bytes:
        """Return the event that ends a stream whose caller asked for usage."""
        return self._event("", sum_usage(usages, self.call.n))
