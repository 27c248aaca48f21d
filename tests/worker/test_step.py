"""How a step is laid out, what a pool is, how it is sized, and what is refused."""

from __future__ import annotations

import pytest
import torch

from lmpoold.protocol.errors import ConfigError
from lmpoold.text.fingerprint import KVGeometry, kv_block_bytes, kv_geometry
from lmpoold.text.folder import ModelFolder, resolve
from lmpoold.text.shapes import SHAPES
from workers.model.attention import bind, paged_attention
from workers.model.batch import Row, build_step
from workers.model.kv import KVPool
from workers.model.runner import ModelRunner
from workers.model.size import blocks_for_budget
from workers.model.torch_backend import TorchBackend
from workers.model.weights import load, unserved

GEOMETRY = KVGeometry(layers=3, kv_heads=2, head_dim=8)


def pool(num_blocks: int = 6, block_size: int = 4) -> KVPool:
    return KVPool(num_blocks, GEOMETRY, block_size=block_size, dtype=torch.float32)


def test_a_step_lays_tokens_end_to_end_and_sends_shared_ones_to_the_trash():
    step = build_step(
        [
            Row(tokens=[7], start=5, block_table=[2, 0]),
            Row(tokens=[8], start=3, block_table=[4], write_from=4),
            Row(tokens=[1, 2, 3], start=2, block_table=[3, 1], write_from=3, samples=False),
        ],
        block_size=4,
        trash_block=6,
    )
    assert step.ids.tolist() == [7, 8, 1, 2, 3]
    assert step.positions.tolist() == [5, 3, 2, 3, 4]
    assert step.slots.tolist() == [1, 27, 26, 15, 4]
    assert step.block_tables.tolist() == [[2, 0], [4, 6], [3, 1]]
    assert step.context_lens.tolist() == [6, 4, 5]
    assert step.cu_q.tolist() == [0, 1, 2, 5]
    assert step.sample_at.tolist() == [0, 1]
    assert (step.num_decode, step.q_lens, step.contexts) == (2, (1, 1, 3), (6, 4, 5))


def test_a_step_in_which_nobody_samples_is_laid_out_all_the_same():
    rows = [Row(tokens=[1, 2], start=0, block_table=[0], samples=False)]
    step = build_step(rows, block_size=4, trash_block=6)
    assert (step.sample_at.tolist(), step.num_decode) == ([], 0)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], "at least one row"),
        ([Row(tokens=[], start=0, block_table=[0])], "needs tokens"),
        ([Row(tokens=[1], start=4, block_table=[0])], "do not hold 5 tokens"),
        ([Row(tokens=[1], start=0, block_table=[7])], "block ids"),
        ([Row(tokens=[1], start=0, block_table=[-1])], "block ids"),
    ],
)
def test_a_row_that_would_write_astray_is_refused(rows, what):
    with pytest.raises(ValueError, match=what):
        build_step(rows, block_size=4, trash_block=6)


def test_row_numbers_address_the_same_memory_as_the_block_views():
    kv = pool()
    kv.data.copy_(torch.arange(kv.data.numel()).view_as(kv.data))
    slots = torch.arange(7 * 4)
    for index in range(GEOMETRY.layers):
        layer = kv.layer(index)
        rows = kv.rows(slots)
        assert torch.equal(layer.k_rows[rows], layer.k.reshape(28, 16))
        assert torch.equal(layer.v_rows[rows], layer.v.reshape(28, 16))
        assert torch.equal(layer.k, kv.data[:, index, 0])


def test_a_gathered_block_is_one_contiguous_extent_and_scatters_back():
    kv = pool()
    kv.data.copy_(torch.randn(kv.data.shape))
    packed = kv.gather([4, 1])
    assert packed.shape == (2, 3, 2, 4, 2, 8)
    assert packed[0].nbytes == kv.block_bytes == kv_geometry_bytes()
    kv.scatter([0, 5], packed)
    assert torch.equal(kv.data[0], kv.data[4])
    assert torch.equal(kv.data[5], kv.data[1])


def kv_geometry_bytes() -> int:
    config = {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 32,
    }
    return kv_block_bytes(config, block_size=4, dtype_bytes=4)


@pytest.mark.parametrize("ids", [[6], [-1]])
def test_the_trash_block_can_neither_be_gathered_nor_overwritten(ids):
    kv = pool()
    with pytest.raises(ValueError, match="block ids"):
        kv.gather(ids)
    with pytest.raises(ValueError, match="block ids"):
        kv.scatter(ids, kv.gather([0]))


def test_a_budget_gives_its_blocks_less_the_spare_one():
    sizes = {"block_bytes": 1000, "block_size": 16, "max_model_len": 64}
    assert blocks_for_budget(10_999, **sizes) == 9
    assert blocks_for_budget(5000, **sizes) == 4
    with pytest.raises(
        ConfigError, match=r"3 KV blocks of 16 tokens .* hold 48 tokens.*--kv-bytes"
    ):
        blocks_for_budget(4999, **sizes)
    with pytest.raises(ConfigError, match="hold 0 tokens"):
        blocks_for_budget(10, **sizes)


@pytest.mark.parametrize("name", [name for name in SHAPES if name.startswith("tiny")])
def test_config_json_alone_tells_the_kv_sizes_of_the_loaded_model(name, random_model):
    loaded, _ = random_model(name)
    made = loaded.model.config
    assert loaded.geometry == kv_geometry(loaded.folder.config())
    assert loaded.geometry.head_dim == loaded.model.model.layers[0].self_attn.head_dim
    assert loaded.geometry.kv_heads == made.num_key_value_heads


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"sliding_window": 100}, "a sliding window of 100 tokens below its context of 2048"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "dynamic",
        ),
        ({"attn_logit_softcapping": 30.0}, "soft-capped"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of linear_attention"),
        ({"is_encoder_decoder": True}, "an encoder"),
    ],
)
def test_a_model_that_a_paged_pool_cannot_serve_is_refused_by_name(changes, what, random_model):
    config = random_model("tiny-mistral")[0].model.config.__class__(
        **{**SHAPES["tiny-mistral"].config(), "model_type": "mistral"}
    )
    assert unserved(config) == ""
    for key, value in changes.items():
        setattr(config, key, value)
    assert what in unserved(config)


def test_a_window_as_wide_as_the_context_is_no_window(random_model):
    config = random_model("tiny-mistral")[0].model.config.__class__(
        **{**SHAPES["tiny-mistral"].config(), "sliding_window": 2048}
    )
    assert unserved(config) == ""


def test_a_family_with_other_attention_is_refused_when_it_is_bound():
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=3, n_head=2))
    with pytest.raises(ConfigError, match="BloomForCausalLM does not use transformers' attention"):
        bind(model, pool())


def test_a_model_with_a_layer_that_has_no_place_in_the_pool_is_refused(random_model):
    shallow = KVPool(
        4, KVGeometry(layers=2, kv_heads=2, head_dim=16), block_size=4, dtype=torch.float32
    )
    with pytest.raises(ConfigError, match=r"attention modules for layers \[0, 1, 2\] of 2"):
        bind(random_model("tiny-llama")[1], shallow)


def test_a_pool_of_other_sizes_is_refused_before_the_first_request(random_model, cache):
    loaded = load(resolve("random:tiny-qwen3", cache=cache), dtype="float32")
    with pytest.raises(ConfigError, match=r"makes keys \(2, 32\).*the pool has \(2, 8\)"):
        ModelRunner(loaded, pool(), TorchBackend())


def test_a_paged_model_called_outside_a_step_says_so():
    with pytest.raises(RuntimeError, match="only inside its runner's step"):
        paged_attention(torch.nn.Identity(), *[torch.zeros(1, 1, 1, 1)] * 3, None)


def test_random_weights_are_drawn_alike_every_time_and_leave_the_global_generator_alone(cache):
    folder = resolve("random:tiny-llama", cache=cache)
    torch.manual_seed(1)
    first = load(folder)
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(2)
    second = load(folder)
    assert first.digest == second.digest
    for one, two in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_one_changed_weight_changes_the_digest(tmp_path, random_model):
    plain = random_model("tiny-llama")[1]
    plain.save_pretrained(tmp_path / "a")
    plain.save_pretrained(tmp_path / "b")
    file = tmp_path / "b" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    digests = [load(ModelFolder(name=n, path=tmp_path / n)).digest for n in ("a", "b")]
    assert digests[0] == digests[1]
    file.write_bytes(raw)
    assert load(ModelFolder(name="b", path=tmp_path / "b")).digest != digests[0]


def test_a_folder_without_weights_names_the_missing_file(tmp_path, random_model):
    plain = random_model("tiny-llama")[1]
    plain.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"lacks its weights: model\.safetensors"):
        load(ModelFolder(name="x", path=tmp_path))


def test_a_truncated_weight_file_is_a_config_error(tmp_path, random_model):
    random_model("tiny-llama")[1].save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(ConfigError, match="transformers cannot load"):
        load(ModelFolder(name="x", path=tmp_path))


def test_an_unknown_dtype_or_family_is_a_config_error(tmp_path, cache):
    with pytest.raises(ConfigError, match="dtype must be auto or one of"):
        load(resolve("random:tiny-llama", cache=cache), dtype="int3")
    (tmp_path / "config.json").write_text(
        '{"model_type": "no-such", "num_attention_heads": 1, "num_hidden_layers": 1}'
    )
    with pytest.raises(ConfigError, match="'no-such' config"):
        load(ModelFolder(name="x", path=tmp_path))
