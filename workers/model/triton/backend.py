"""`attention.Backend` on Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.model.batch import StepInput
from workers.model.kv import KVPool, LayerKV
from workers.model.packing import DeviceStep
from workers.model.triton.decode import choose_splits, decode
from workers.model.triton.prefill import TILE, choose_tile_splits, prefill
from workers.model.triton.shared import SharedRows
from workers.model.triton.write import write

HEAD_DIMS = (16, 32, 64, 128)
"""What the kernels are written for: powers of two that the tensor cores take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPlan:
    """A step and how to divide its decodes."""

    step: DeviceStep
    splits: int


class TritonBackend:
    """Decodes go to one kernel, prefills to another, whatever mixture a step is."""

    def __init__(self, device: torch.device) -> None:
        """Ask the device how many sequences keep it busy."""
        self._processors = 1
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count

    def plan(self, step: StepInput, pool: KVPool) -> TritonPlan:
        """Turn a laid-out step into what the kernels read."""
        device = step.ids.device
        rows, width = step.block_tables.shape
        narrow = {name: getattr(step, name).int() for name in ("ids", "positions", "slots")}
        tiles = [
            (row, query)
            for row in range(step.num_decode, rows)
            for query in range(0, step.q_lens[row], TILE)
        ]
        tile_rows, tile_begins = torch.tensor(tiles, dtype=torch.int32).view(-1, 2).T.contiguous()
        nothing = narrow["ids"][:0]
        return self.plan_device(
            DeviceStep(
                **narrow,
                after=torch.full_like(narrow["ids"], -1),
                sample_at=step.sample_at,
                begins=torch.arange(rows, dtype=torch.int32, device=device) * width,
                contexts=step.context_lens,
                starts=step.cu_q,
                decode_contexts=step.context_lens[: step.num_decode],
                tile_rows=tile_rows.to(device),
                tile_begins=tile_begins.to(device),
                shared_rows=nothing,
                shared_tokens=nothing,
                skips=nothing,
                table=step.block_tables.flatten(),
            ),
            pool,
        )

    def plan_device(self, step: DeviceStep, pool: KVPool) -> TritonPlan:
        """Plan a step that is on the device already."""
        rows = max(1, len(step.decode_contexts))
        splits = choose_splits(rows, pool.geometry.kv_heads, self._processors)
        return TritonPlan(step=step, splits=splits)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: LayerKV, plan: TritonPlan, scale: float
    ) -> Tensor:
        """Write, then attend; shapes as in `attention.Backend`."""
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        write(k, v, layer, plan.step.slots)
        return self.read(q, layer, plan, scale)

    def read(self, q: Tensor, layer: LayerKV, plan: TritonPlan, scale: float) -> Tensor:
        """Attend over K/V that is in the pool already; returns `[T, head, head_dim]`."""
        step = plan.step
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if len(step.decode_contexts):
            decode(
                q,
                layer,
                step.table,
                step.begins,
                step.decode_contexts,
                out,
                scale=scale,
                splits=plan.splits,
                shared=SharedRows(step.shared_rows, step.shared_tokens, step.skips)
                if len(step.shared_tokens)
                else None,
            )
        if len(step.tile_rows):
            prefill(
                q,
                layer,
                step.table,
                step.begins,
                step.contexts,
                step.starts,
                step.tile_rows,
                step.tile_begins,
                out,
                scale=scale,
                splits=choose_tile_splits(q.shape[0], q.shape[1], self._processors),
            )
        return out
