"""Named model shapes for `random:<shape>`: a served model without weights, for tests and
benchmarks.

The `tiny-*` shapes are wide enough to be told apart and small enough for a laptop; the `qwen3-*`
ones have the sizes of the published models, so a step costs what theirs costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmpoold.protocol.errors import ConfigError

END_TOKEN_ID = 256
"""`<|end|>` of the byte-level tokenizer that random shapes get: the id after the 256 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a decoder, and how its random weights are drawn.

    `head_dim` counts elements; `initializer_range` is the standard deviation of the weights: a
    wide one makes greedy output vary from token to token, which parity tests need.
    """

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    tied: bool
    initializer_range: float
    dtype: str
    seed: int = 0

    def config(self) -> dict[str, Any]:
        """Return the `config.json` that `transformers` reads for this shape."""
        config: dict[str, Any] = {
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": self.tied,
            "initializer_range": self.initializer_range,
            "dtype": self.dtype,
            "bos_token_id": None,
            "eos_token_id": END_TOKEN_ID,
            "pad_token_id": None,
        }
        if self.family == "mistral":  # its default is a window, which a paged pool cannot serve
            config["sliding_window"] = None
        return config


def _tiny(family: str, *, head_dim: int) -> Shape:
    return Shape(
        name=f"tiny-{family}",
        family=family,
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=head_dim,
        max_position_embeddings=2048,
        rope_theta=10_000.0,
        tied=False,
        initializer_range=0.2,
        dtype="float32",
    )


def _qwen3(size: str, *, hidden_size: int, intermediate_size: int) -> Shape:
    return Shape(
        name=f"qwen3-{size}",
        family="qwen3",
        vocab_size=151_936,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_theta=1_000_000.0,
        tied=True,
        initializer_range=0.02,
        dtype="bfloat16",
    )


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _tiny("qwen3", head_dim=32),
        _tiny("llama", head_dim=16),
        _tiny("qwen2", head_dim=16),
        _tiny("mistral", head_dim=16),
        _tiny("gemma", head_dim=32),
        _qwen3("0.6b", hidden_size=1024, intermediate_size=3072),
        _qwen3("1.7b", hidden_size=2048, intermediate_size=6144),
    )
}


def shape_named(name: str) -> Shape:
    """Return the shape of that name; ConfigError lists the names there are."""
    shape = SHAPES.get(name)
    if shape is None:
        raise ConfigError(f"no shape is called {name!r}; the shapes are {', '.join(SHAPES)}")
    return shape
