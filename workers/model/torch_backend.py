"""Paged attention in plain PyTorch: the reference, and what a CPU worker runs.

All indices are computed once a step. Per layer that leaves two writes and, for all decoding
sequences of similar length together, two gathers and one SDPA call over a padded batch; each
prefill chunk has a call of its own. Query heads that share a KV head are laid out as query rows of
that head, which needs no repeated K/V.

Padding cannot change a result: padded slots repeat the sequence's own first slot (a finite value)
and are masked out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.model.batch import StepInput
from workers.model.kv import KVPool, LayerKV


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decodes:
    """S one-token rows of similar context, padded to C slots."""

    tokens: Tensor | None  # [S] int64: which tokens of the step; None for all of them
    rows: Tensor  # [S * C] int64, row numbers of the pool
    size: int  # S
    mask: Tensor | None  # [S, 1, 1, C] bool, True where a slot counts; None if all do


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefill:
    """One row of several tokens."""

    begin: int
    end: int
    rows: Tensor | None  # [context] int64; None when all K/V comes with this step
    mask: Tensor | None  # [end - begin, context] bool; None for a plain causal triangle


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The indices of one step."""

    writes: Tensor  # [T] int64, row numbers of the pool
    decodes: tuple[_Decodes, ...]
    prefills: tuple[_Prefill, ...]


class TorchBackend:
    """Implements `attention.Backend`."""

    def plan(self, step: StepInput, pool: KVPool) -> Plan:
        """Compute the indices of a step."""
        similar: dict[int, list[int]] = defaultdict(list)
        prefills = []
        begin = 0
        for row, (q_len, context) in enumerate(zip(step.q_lens, step.contexts, strict=True)):
            if q_len == 1:  # padding then costs at most a factor of two
                similar[context.bit_length()].append(row)
            else:
                prefills.append(_plan_prefill(step, pool, row, begin))
            begin += q_len
        return Plan(
            writes=pool.rows(step.slots),
            decodes=tuple(_plan_decodes(step, pool, rows) for rows in similar.values()),
            prefills=tuple(prefills),
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: LayerKV, plan: Plan, scale: float
    ) -> Tensor:
        """Write, then attend; shapes as in `attention.Backend`."""
        layer.k_rows.index_copy_(0, plan.writes, k.flatten(1))
        layer.v_rows.index_copy_(0, plan.writes, v.flatten(1))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for decodes in plan.decodes:
            if decodes.tokens is None:
                return _attend_decodes(q, layer, decodes, scale)
            rows = _attend_decodes(q[decodes.tokens], layer, decodes, scale)
            out.index_copy_(0, decodes.tokens, rows)
        for prefill in plan.prefills:
            part = slice(prefill.begin, prefill.end)
            out[part] = _attend_prefill(q[part], k[part], v[part], layer, prefill, scale)
        return out


def _slots(step: StepInput, pool: KVPool, rows: Tensor, positions: Tensor) -> Tensor:
    """Return the slots of positions `[S, C]` of the given rows `[S]`."""
    blocks = positions.div(pool.block_size, rounding_mode="floor")
    tables = step.block_tables[rows].to(torch.int64)
    return tables.gather(1, blocks) * pool.block_size + positions % pool.block_size


def _plan_decodes(step: StepInput, pool: KVPool, rows: list[int]) -> _Decodes:
    device = step.ids.device
    chosen = torch.tensor(rows, device=device)
    contexts = step.context_lens[chosen].to(torch.int64)[:, None]
    longest = max(step.contexts[row] for row in rows)
    positions = torch.arange(longest, device=device)[None]
    counts = positions < contexts  # [S, C]
    slots = _slots(step, pool, chosen, positions.where(counts, 0))
    even = all(step.contexts[row] == longest for row in rows)
    return _Decodes(
        tokens=None if len(rows) == len(step.ids) else step.cu_q[chosen].to(torch.int64),
        rows=pool.rows(slots).flatten(),
        size=len(rows),
        mask=None if even else counts[:, None, None],
    )


def _plan_prefill(step: StepInput, pool: KVPool, row: int, begin: int) -> _Prefill:
    q_len, context = step.q_lens[row], step.contexts[row]
    if q_len == context:
        return _Prefill(begin=begin, end=begin + q_len, rows=None, mask=None)
    device = step.ids.device
    positions = torch.arange(context, device=device)
    slots = _slots(step, pool, torch.tensor([row], device=device), positions[None])
    return _Prefill(
        begin=begin,
        end=begin + q_len,
        rows=pool.rows(slots)[0],
        mask=positions[None] <= positions[context - q_len :, None],
    )


def _attend_decodes(q: Tensor, layer: LayerKV, plan: _Decodes, scale: float) -> Tensor:
    kv_heads, head_dim = layer.k.shape[2:]
    shape = (plan.size, -1, kv_heads, head_dim)
    k = layer.k_rows.index_select(0, plan.rows).view(shape).transpose(1, 2)
    v = layer.v_rows.index_select(0, plan.rows).view(shape).transpose(1, 2)
    grouped = q.reshape(plan.size, kv_heads, -1, head_dim)  # query heads of one KV head as its rows
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=plan.mask, scale=scale)
    return out.reshape(q.shape)


def _attend_prefill(
    q: Tensor, k: Tensor, v: Tensor, layer: LayerKV, plan: _Prefill, scale: float
) -> Tensor:
    if plan.rows is not None:
        shape = (-1, *layer.k.shape[2:])
        k = layer.k_rows.index_select(0, plan.rows).view(shape)
        v = layer.v_rows.index_select(0, plan.rows).view(shape)
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=plan.mask,
        is_causal=plan.mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
