"""Text to token ids and back, as the served model was trained to read it; no torch.

The ids equal those of `transformers`' fast tokenizers, since both run the folder's tokenizer.json.
What the libraries read from elsewhere is read here too: the chat template, the special tokens'
names, and where a turn ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lmpoold.protocol.errors import ConfigError, InvalidRequest
from lmpoold.text.folder import ModelFolder
from lmpoold.text.shapes import END_TOKEN_ID
from lmpoold.text.template import ChatTemplate

_BYTE_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_PROBE = "\N{WHITE SQUARE}"


class TextModel:
    """The text half of a model. Safe to use from several threads at once.

    Attributes:
        vocab_size: ids run from 0 to below this; the width of the model's logits.
        max_model_len: the most tokens of prompt and output together that the model was made for.
        stop_ids: tokens that end an answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        vocab_size: int,
        max_model_len: int,
        stop_ids: frozenset[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.stop_ids = stop_ids

    @classmethod
    def load(cls, folder: ModelFolder) -> TextModel:
        """Read a model's tokenizer, template and stop tokens.

        Raises: ConfigError: the folder lacks a file or a key; the message names it.
        """
        config = folder.config()
        if folder.shape is not None:
            tokenizer = _byte_tokenizer()
            template: ChatTemplate | None = ChatTemplate(_BYTE_TEMPLATE, {})
            stop_ids = {END_TOKEN_ID}
        else:
            tokenizer = _read_tokenizer(folder)
            settings = folder.read_json("tokenizer_config.json") or {}
            template = _read_template(folder, settings)
            stop_ids = {*_eos_ids(folder, config, settings, tokenizer)}
            stop_ids |= {*_turn_end_ids(tokenizer, template)}
        return cls(
            tokenizer,
            template,
            vocab_size=_positive(config, "vocab_size"),
            max_model_len=_positive(config, "max_position_embeddings"),
            stop_ids=frozenset(stop_ids),
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of a plain prompt, with a begin token only where the model's tokenizer
        adds one.

        Raises: InvalidRequest: the text holds half a surrogate pair.
        """
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of a conversation, up to where the assistant's answer begins.

        Args:
            messages: each with a `role` and a `content`.
        Raises: InvalidRequest: the model has no chat template, or its template refuses the
        messages.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template; send `prompt`")
        text = self._template.render(messages, add_generation_prompt=True)
        return self._encode(text, add_special_tokens=False)  # the template spelled them out

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens left out; ids without text give none."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    @cached_property
    def ids_fit(self) -> bool:
        """Whether every id that a text can give lies in the vocabulary; the first look is long."""
        return max(self.vocabulary().values(), default=0) < self.vocab_size

    def vocabulary(self) -> dict[str, int]:
        """Return token -> id, added tokens included."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can spell a lone surrogate; no tokenizer can read it
            raise InvalidRequest("the text holds half a surrogate pair") from None
        # A batch of one: unlike `encode`, it lets other threads run and keeps no offsets.
        (read,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = read.ids
        return ids


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise ConfigError(f"config.json needs a positive {key}, got {value!r}")
    return value


def _byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose ids 0-255 are the bytes, followed by the two marks of a turn."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in kept]
    # ByteLevel writes a byte as the character of that number, or from 256 on if it has no glyph
    vocab = {chr(byte): byte for byte in kept}
    vocab |= {chr(256 + rank): byte for rank, byte in enumerate(shifted)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in ("<|end|>", "<|start|>")]
    )
    assert tokenizer.token_to_id("<|end|>") == END_TOKEN_ID
    return tokenizer


def _read_tokenizer(folder: ModelFolder) -> Tokenizer:
    assert folder.path is not None
    file = folder.path / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{folder.path} holds no tokenizer.json, which LMPool needs")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises a bare Exception
        raise ConfigError(f"{file} cannot be read: {error}") from None
    tokenizer.no_truncation()  # a prompt is refused when it is too long, never cut in silence
    tokenizer.no_padding()
    return tokenizer


def _read_template(folder: ModelFolder, settings: Mapping[str, Any]) -> ChatTemplate | None:
    assert folder.path is not None
    file = folder.path / "chat_template.jinja"
    source: Any = settings.get("chat_template")
    if file.is_file():
        source = file.read_text(encoding="utf-8")
    elif isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, dict(_special_tokens(folder, settings)))


def _special_tokens(folder: ModelFolder, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    merged = {**(folder.read_json("special_tokens_map.json") or {}), **settings}
    for key, value in merged.items():
        token = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(token, str):
            yield key, token


def _eos_ids(
    folder: ModelFolder,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> Iterator[int]:
    """Yield what ends a text: generation and model config agree on ids; else the tokenizer's eos.

    The tokenizer's own eos comes last, since conversions have been seen to name the wrong token
    there.
    """
    found = False
    for source in (folder.read_json("generation_config.json") or {}, config):
        value = source.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if isinstance(token_id, int):
                found = True
                yield token_id
    if not found:
        name = dict(_special_tokens(folder, settings)).get("eos_token", "")
        token_id = tokenizer.token_to_id(name)
        if token_id is not None:
            yield token_id


def _turn_end_ids(tokenizer: Tokenizer, template: ChatTemplate | None) -> Iterator[int]:
    """Yield the special token that the chat template writes right after an assistant's words."""
    if template is None:
        return
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
    try:
        text = template.render(turns, add_generation_prompt=False)
    except InvalidRequest:  # a template that wants more than words: the config's ids must do
        return
    _, found, rest = text.rpartition(_PROBE)
    special = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    ends = [name for name in special if found and rest.lstrip().startswith(name)]
    if ends:
        yield special[max(ends, key=len)]
