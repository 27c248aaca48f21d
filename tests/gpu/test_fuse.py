"""Replaced layers compute what the model's own do, and what is not known is left alone."""

from __future__ import annotations

import logging

import pytest
import torch

from lmpoold.text.folder import resolve
from workers.model.batch import Row, build_step
from workers.model.kv import KVPool
from workers.model.weights import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Conversion of an array"),  # in Triton's interpreter
]

FUSED = ["tiny-qwen3", "tiny-llama", "tiny-qwen2", "tiny-mistral"]


@pytest.fixture
def opened(device, tmp_path):
    """A tiny model of a name, on a small pool of its own."""

    def open_model(name: str, dtype: str = "float32"):
        loaded = load(resolve(f"random:{name}", cache=tmp_path), dtype=dtype, device=device)
        pool = KVPool(8, loaded.geometry, block_size=16, dtype=loaded.dtype, device=loaded.device)
        return loaded, pool

    return open_model


def step_of(rows, pool):
    return build_step(
        rows,
        block_size=pool.block_size,
        trash_block=pool.trash_block,
        device=pool.data.device,
    )


@pytest.mark.parametrize("name", FUSED)
def test_a_known_family_is_fused_and_agrees_with_transformers(opened, name):
    from workers.model.cuda_runner import make_decoder
    from workers.model.fuse import FusedDecoder
    from workers.model.triton.backend import TritonBackend

    loaded, pool = opened(name)
    tokens = [(7 * at + 3) % 512 for at in range(37)]
    with torch.inference_mode():
        loaded.model.set_attn_implementation("sdpa")
        expected = loaded.model(torch.tensor([tokens], device=pool.data.device)).logits[0]
    decoder = make_decoder(loaded, pool)
    assert isinstance(decoder, FusedDecoder)
    assert not pool.data.any(), "the check left something in the pool"
    backend = TritonBackend(pool.data.device)
    table = [5, 2, 7]
    got = []
    with torch.inference_mode():
        for begin, end in ((0, 20), (20, 36), (36, 37)):
            rows = [Row(tokens=tokens[begin:end], start=begin, block_table=table)]
            got.append(decoder.logits(backend.plan(step_of(rows, pool), pool), None))
    off = (torch.cat(got) - expected).abs().max()
    assert off < 1e-3 * expected.abs().max()


def test_what_is_not_known_runs_as_it_is_and_says_so_once(opened, caplog):
    from workers.model.cuda_runner import make_decoder
    from workers.model.decoder import PlainDecoder

    loaded, pool = opened("tiny-gemma")
    with caplog.at_level(logging.WARNING):
        decoder = make_decoder(loaded, pool)
    assert isinstance(decoder, PlainDecoder)
    assert [record.reason for record in caplog.records] == [
        "GemmaDecoderLayer is not one of LlamaDecoderLayer, MistralDecoderLayer, "
        "Qwen2DecoderLayer, Qwen3DecoderLayer"
    ]


def test_a_layer_that_computes_something_else_is_found_out(opened):
    from workers.model.decoder import PlainDecoder
    from workers.model.fuse import Unfused, fuse
    from workers.model.triton.backend import TritonBackend

    loaded, pool = opened("tiny-llama")
    plain_forward = loaded.model.model.layers[1].mlp.forward
    loaded.model.model.layers[1].mlp.forward = lambda x: plain_forward(x) * 1.05
    backend = TritonBackend(pool.data.device)
    plain = PlainDecoder(loaded.model, pool, backend)
    found = fuse(loaded.model, pool, backend, plain)
    assert isinstance(found, Unfused)
    assert found.reason.startswith("fused layer 1 is off by")


def test_an_embedding_that_is_scaled_is_found_out(opened):
    from workers.model.decoder import PlainDecoder
    from workers.model.fuse import Unfused, fuse
    from workers.model.triton.backend import TritonBackend

    loaded, pool = opened("tiny-llama")
    embed = loaded.model.model.embed_tokens
    embed.register_forward_hook(lambda module, args, output: output * 3)
    backend = TritonBackend(pool.data.device)
    found = fuse(loaded.model, pool, backend, PlainDecoder(loaded.model, pool, backend))
    assert isinstance(found, Unfused)
    assert found.reason.startswith("the fused model is off by")


@pytest.mark.parametrize("name", [*FUSED, "tiny-gemma"])
def test_joined_weights_are_still_the_models_own(opened, name):
    from workers.model.cuda_runner import make_decoder
    from workers.model.fuse import FusedDecoder

    loaded, pool = opened(name)
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    decoder = make_decoder(loaded, pool)
    after = loaded.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    if isinstance(decoder, FusedDecoder):
        attention = loaded.model.model.layers[0].self_attn
        q, k = attention.q_proj.weight, attention.k_proj.weight
        assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
