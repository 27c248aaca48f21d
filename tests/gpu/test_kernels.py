"""Every kernel against float64, over shapes that cut tiles and blocks in every way."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.functional import silu

from lmpoold.text.fingerprint import KVGeometry
from tests.gpu.conftest import INTERPRETED
from workers.model.batch import Row, build_step
from workers.model.kv import KVPool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Conversion of an array"),  # in Triton's interpreter
]

DTYPES = [torch.float32, torch.float16]
if not INTERPRETED:  # the interpreter multiplies bf16 numbers as if they were integers
    DTYPES.append(torch.bfloat16)
BOUND = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
HEADS = [(4, 4, 64), (16, 8, 128), (7, 1, 64), (8, 2, 16)]  # query heads, KV heads, head_dim
CASES = {  # (cached, new) tokens of each row, decodes first
    "one": [(0, 1)],
    "decodes": [(0, 1), (63, 1), (64, 1), (700, 1)],
    "prefill": [(0, 130), (0, 64), (0, 2)],
    "cached": [(1, 70), (64, 64), (129, 3)],
    "mixed": [(17, 1), (300, 1), (0, 65), (200, 100)],
}


def random_pool(geometry, block_size, blocks, dtype, device, generator) -> KVPool:
    """A pool of noise: whoever reads a slot that is not his, reads what is wrong."""
    pool = KVPool(blocks, geometry, block_size=block_size, dtype=dtype, device=device)
    noise = torch.randn(pool.data.shape, generator=generator, device=device)
    pool.data.copy_(noise * 100)
    pool.data[pool.trash_block] = float("nan")
    return pool


def lay_out(case, block_size, seed=3):
    draw = random.Random(seed)
    blocks = [-(-(cached + new) // block_size) for cached, new in case]
    ids = list(range(sum(blocks) + 3))
    draw.shuffle(ids)
    rows = []
    for (cached, new), count in zip(case, blocks, strict=True):
        table = [ids.pop() for _ in range(count)]
        rows.append(Row(tokens=[1] * new, start=cached, block_table=table))
    return rows, sum(blocks) + 3


def off(got, expected) -> float:
    error = (got.double() - expected).norm() / expected.norm()
    return float(error) if bool(torch.isfinite(error)) else float("inf")


def attend_in_float64(q, k, v, scale):
    """`[new, head, d]` over `[context, kv_head, d]`, causal at the end."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    new, context = q.shape[0], k.shape[0]
    ahead = torch.ones(new, context, dtype=torch.bool, device=q.device).triu(context - new + 1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(ahead, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [16, 48, 64, 256])
@pytest.mark.parametrize("case", CASES)
def test_attention_reads_what_its_sequence_wrote_and_nothing_else(
    device, generator, case, block_size, dtype
):
    from workers.model.triton.backend import TritonBackend

    heads, kv_heads, head_dim = HEADS[len(case) % len(HEADS)]
    geometry = KVGeometry(layers=2, kv_heads=kv_heads, head_dim=head_dim)
    rows, blocks = lay_out(CASES[case], block_size)
    pool = random_pool(geometry, block_size, blocks, dtype, device, generator)
    total = sum(len(row.tokens) for row in rows)
    step = build_step(rows, block_size=block_size, trash_block=pool.trash_block, device=device)
    backend = TritonBackend(device)
    backend._processors = 132  # split as on a large chip
    plan = backend.plan(step, pool)

    def noise(*shape):
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    q, k, v = noise(total, heads, head_dim), *noise(2, total, kv_heads, head_dim)
    known, at = [], 0
    for row in rows:
        past = noise(2, row.start, kv_heads, head_dim)
        mine = slice(at, at + len(row.tokens))
        known.append((q[mine], torch.cat([past[0], k[mine]]), torch.cat([past[1], v[mine]])))
        for place in range(row.start):
            block, offset = row.block_table[place // block_size], place % block_size
            pool.data[block, 1, :, offset] = past[:, place]
        # what lies behind the sequence in its last block must not count
        end = row.context
        if end % block_size:
            pool.data[row.block_table[-1], 1, :, end % block_size :] = float("nan")
        at = mine.stop
    before = pool.data[:, 0].clone()
    out = backend.attend(q, k, v, pool.layer(1), plan, 0.3)
    at = 0
    for row, (mine, keys, values) in zip(rows, known, strict=True):
        part = out[at : at + len(row.tokens)]
        assert off(part, attend_in_float64(mine, keys, values, 0.3)) < BOUND[dtype], row
        at += len(row.tokens)
    assert torch.equal(pool.data[:, 0].nan_to_num(), before.nan_to_num()), "another layer's K/V"


@pytest.mark.better(19)
@pytest.mark.parametrize("context", [1, 255, 256, 257, 1000, 5000])
def test_splits_of_a_sequence_merge_to_the_whole(device, generator, context):
    from workers.model.triton.decode import MAX_SPLITS, decode

    geometry = KVGeometry(layers=1, kv_heads=2, head_dim=64)
    rows, blocks = lay_out([(context - 1, 1)], 64)
    pool = random_pool(geometry, 64, blocks, torch.float16, device, generator)
    pool.data.div_(100)
    table = torch.tensor(rows[0].block_table, dtype=torch.int32, device=device)
    begins = torch.zeros(3, dtype=torch.int32, device=device)
    contexts = torch.tensor([context, 0, context], dtype=torch.int32, device=device)
    q = torch.randn(3, 4, 64, generator=generator, device=device).half()
    outs = []
    for splits in (1, 4, MAX_SPLITS):
        out = torch.full_like(q, 7.0)
        decode(q, pool.layer(0), table, begins, contexts, out, scale=0.125, splits=splits)
        outs.append(out)
    assert (outs[0][1] == 7.0).all(), "a row without context writes nothing"
    for other in outs[1:]:
        assert torch.allclose(other, outs[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [16, 48, 256])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("splits", [1, 4])
def test_kv_read_once_for_many_rows_gives_what_each_would_read_alone(
    device, generator, splits, heads, block_size, dtype
):
    from workers.model.sharing import TILE_ROWS
    from workers.model.triton.decode import decode
    from workers.model.triton.shared import SharedRows

    heads, kv_heads, head_dim = heads
    geometry = KVGeometry(layers=1, kv_heads=kv_heads, head_dim=head_dim)
    tiles = [([4, 0, 5, 1, 7], 1280), ([2, 9], 768)]  # rows 3, 6 and 8 are on their own
    own = [1, 300, 65, 40, 17, 64, 900, 5, 0, 130]  # the ninth is padding
    skips = [0] * len(own)
    for rows, tokens in tiles:
        for row in rows:
            skips[row] = tokens
    contexts = [skip + count for skip, count in zip(skips, own, strict=True)]
    tables, blocks = [], 0
    common = {}
    for context, skip in zip(contexts, skips, strict=True):
        if skip and skip not in common:
            common[skip] = list(range(blocks, blocks - (-skip // block_size)))
            blocks -= -skip // block_size
        table = list(common.get(skip, ()))
        more = -(-context // block_size) - len(table)
        tables.append(table + list(range(blocks, blocks + more)))
        blocks += more
    pool = random_pool(geometry, block_size, blocks, dtype, device, generator)
    pool.data.div_(100)

    def numbers(values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    listed = [rows + [-1] * (TILE_ROWS - len(rows)) for rows, _ in tiles]
    shared = SharedRows(
        rows=numbers([*listed, [-1] * TILE_ROWS]).flatten(),
        tokens=numbers([*(tokens for _, tokens in tiles), 0]),
        skips=numbers(skips),
    )
    begins = numbers([0, *(len(table) for table in tables)]).cumsum(0).int()
    table = numbers([block for table in tables for block in table])
    q = torch.randn(len(own), heads, head_dim, generator=generator, device=device).to(dtype)
    outs = []
    for which in (None, shared):
        out = torch.full_like(q, 7.0)
        where = (table, begins, numbers(contexts), out)
        decode(q, pool.layer(0), *where, scale=0.125, splits=splits, shared=which)
        outs.append(out)
    assert (outs[1][8] == 7.0).all(), "a row without context writes nothing"
    assert off(outs[1], outs[0].double()) < BOUND[dtype]


@pytest.mark.better(19)
@pytest.mark.parametrize("block_size", [16, 48, 256])
@pytest.mark.parametrize(
    "case",
    [[(0, 1)], [(0, 130)], [(63, 2), (64, 65)], [(1000, 3), (5, 2), (700, 150)], [(3000, 64)]],
    ids=str,
)
def test_splits_of_a_tile_merge_to_the_whole(device, generator, case, block_size):
    from workers.model.triton.prefill import TILE, prefill

    geometry = KVGeometry(layers=1, kv_heads=2, head_dim=64)
    rows, blocks = lay_out(case, block_size)
    pool = random_pool(geometry, block_size, blocks, torch.float16, device, generator)
    pool.data.div_(100)

    def numbers(values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    table = numbers([block for row in rows for block in row.block_table])
    held = numbers([0] + [len(row.block_table) for row in rows]).cumsum(0).int()
    starts = numbers([0] + [len(row.tokens) for row in rows]).cumsum(0).int()
    contexts = numbers([row.context for row in rows])
    tiles = [
        (at, query) for at, row in enumerate(rows) for query in range(0, len(row.tokens), TILE)
    ]
    tile_rows, tile_begins = numbers([*tiles, (-1, 0)]).T.contiguous()
    q = torch.randn(int(starts[-1]) + 2, 4, 64, generator=generator, device=device).half()
    outs = []
    for splits in (1, 2, 8):
        out = torch.full_like(q, 7.0)
        where = (table, held, contexts, starts, tile_rows, tile_begins)
        prefill(q, pool.layer(0), *where, out, scale=0.125, splits=splits)
        outs.append(out)
    assert (outs[0][-2:] == 7.0).all(), "what no tile asks for is left alone"
    for other in outs[1:]:
        assert torch.allclose(other, outs[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("tokens", "heads", "splits"),
    [(1, 16, 8), (200, 16, 2), (256, 16, 2), (512, 16, 1), (70, 64, 1)],
)
def test_only_short_steps_are_split(tokens, heads, splits):
    pytest.importorskip("triton")
    from workers.model.triton.prefill import choose_tile_splits

    assert choose_tile_splits(tokens, heads, 132) == splits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("normed", [True, False])
def test_rope_and_write_turns_q_in_place_and_sends_k_and_v_to_their_slots(
    device, generator, heads, normed, dtype
):
    from workers.model.triton.write import rope_write

    heads, kv_heads, head_dim = heads
    block_size, tokens, half = 16, 9, head_dim // 2
    geometry = KVGeometry(layers=2, kv_heads=kv_heads, head_dim=head_dim)
    pool = random_pool(geometry, block_size, 5, dtype, device, generator)
    width = (heads + 2 * kv_heads) * head_dim

    def noise(*shape):
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    qkv, norms = noise(tokens, width), (noise(head_dim), noise(head_dim))
    angles = torch.rand(50, half, generator=generator, device=device) * 6
    rope = angles.cos().to(dtype), angles.sin().to(dtype)
    positions = torch.tensor([0, 1, 2, 49, 7, 7, 30, 31, 16], dtype=torch.int32, device=device)
    slots = torch.tensor([3, 4, 5, 79, 0, 40, 41, 63, 64], dtype=torch.int32, device=device)

    def turned(x, weight):
        x = x.double()
        if normed:
            spread = (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
            x = x * spread * weight.double()
        cos, sin = (table[positions.long()].double()[:, None] for table in rope)
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)

    parts = qkv.view(tokens, -1, head_dim).split([heads, kv_heads, kv_heads], 1)
    q, k, v = turned(parts[0], norms[0]), turned(parts[1], norms[1]), parts[2].clone()
    before = pool.data.clone()
    rope_write(
        qkv, norms if normed else None, rope, positions, slots, pool.layer(1), heads=heads, eps=1e-6
    )
    blocks, offsets = slots.long() // block_size, slots.long() % block_size
    assert off(qkv.view(tokens, -1, head_dim)[:, :heads], q) < BOUND[dtype]
    assert off(pool.data[blocks, 1, 0, offsets], k) < BOUND[dtype]
    assert torch.equal(pool.data[blocks, 1, 1, offsets], v)
    pool.data[blocks, 1, :, offsets] = before[blocks, 1, :, offsets]
    assert torch.equal(pool.data.nan_to_num(), before.nan_to_num()), "it wrote beside its slots"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [64, 1000, 2048])
def test_add_norm_adds_in_place_and_norms(device, generator, hidden, dtype):
    from workers.model.triton.pointwise import add_norm

    delta, residual = torch.randn(2, 5, hidden, generator=generator, device=device).to(dtype)
    weight = torch.randn(hidden, generator=generator, device=device).to(dtype)

    def normed(x):
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()

    alone = residual.clone()
    assert off(add_norm(None, alone, weight, 1e-5), normed(residual.double())) < BOUND[dtype]
    assert torch.equal(alone, residual)
    total = residual + delta
    assert off(add_norm(delta, residual, weight, 1e-5), normed(total.double())) < BOUND[dtype]
    assert torch.equal(residual, total)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [32, 1500, 3072])
def test_gate_is_silu_times_up(device, generator, width, dtype):
    from workers.model.triton.pointwise import gate

    both = torch.randn(3, 2 * width, generator=generator, device=device).to(dtype) * 5
    expected = silu(both[:, :width].double()) * both[:, width:].double()
    assert off(gate(both), expected) < BOUND[dtype]


def test_take_replaces_only_the_ids_that_wait(device):
    from workers.model.triton.pointwise import take

    ids = torch.arange(2000, dtype=torch.int32, device=device)
    after = torch.full_like(ids, -1)
    after[3], after[1999] = 1, 0
    take(ids, after, torch.tensor([77, 151_935], device=device))
    expected = torch.arange(2000, dtype=torch.int32, device=device)
    expected[3], expected[1999] = 151_935, 77
    assert torch.equal(ids, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(4096, 1024), (1000, 512), (64, 96), (7, 2048)], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 16, 17])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_that_of_the_library(device, generator, biased, rows, sizes, dtype):
    from workers.model.triton.product import product

    x = torch.randn(rows, sizes[1], generator=generator, device=device).to(dtype)
    weight = torch.randn(sizes, generator=generator, device=device).to(dtype)
    bias = torch.randn(sizes[0], generator=generator, device=device).to(dtype)
    expected = x.double() @ weight.double().T
    if biased:
        expected += bias.double()
    assert off(product(x, weight, bias if biased else None), expected) < BOUND[dtype]
