"""What this project holds itself to, and whether the figures of a run keep it. Pure.

Each bar names the file a benchmark has written, the figure in it and the bound. A figure that is
not there says nothing: its bar is left out, and so is a file's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = Any
"""A file's JSON."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bound.

    Attributes:
        file: without `.json`.
        what: for people.
        read: the figure, from the file's JSON; KeyError or StopIteration if it is not there.
        most: the figure may be so high, or
        least: so low.
    """

    file: str
    what: str
    read: Callable[[Figures], float]
    most: float | None = None
    least: float | None = None

    def met(self, figure: float) -> bool:
        """Whether a figure keeps within the bound."""
        if self.most is not None:
            return figure <= self.most
        return self.least is not None and figure >= self.least

    @property
    def bound(self) -> str:
        """For people."""
        return f"<= {self.most:,g}" if self.most is not None else f">= {self.least:,g}"


def _row(rows: list[Mapping[str, Any]], **wanted: Any) -> Mapping[str, Any]:
    return next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))


def _decode(model: str, batch: int) -> Callable[[Figures], float]:
    return lambda found: float(found["decode_ms"][model][str(batch)])


def _slowdown(transport: str) -> Callable[[Figures], float]:
    def worst(found: Figures) -> float:
        rows = [row for row in found["interference"] if row["transport"] == transport]
        return max((row["step_with_ms"] / row["step_alone_ms"] - 1) * 100 for row in rows)

    return worst


def _rate(transport: str, blocks: int) -> Callable[[Figures], float]:
    return lambda found: float(
        _row(found["rows"], transport=transport, block_tokens=256, blocks=blocks)["gb_s"]
    )


def _right(place: int, decided: str) -> Callable[[Figures], float]:
    """1 where a prefix of that place in length was treated so, and was faster so."""
    return lambda found: float(
        found["rows"][place]["right"] is True and found["rows"][place]["decided"] == decided
    )


def _mean(found: Figures, mode: str, figure: str) -> float:
    return float(found["results"][mode]["summary"][figure]["mean"])


def _gain(figure: str, mode: str, over: str) -> Callable[[Figures], float]:
    """In percent, of one mode over another."""
    return lambda found: (_mean(found, mode, figure) / _mean(found, over, figure) - 1) * 100


def _skew() -> Iterator[Bar]:
    for model in ("0.6b", "1.7b"):
        for over in ("multi-gpu", "kv-routing"):
            file, beside = f"load-skew-qwen3-{model}", f"load-skew {model}, lmpool beside {over}"
            rate, ttft, tpot = "throughput_tok_s", "ttft_ms.mean", "tpot_ms.mean"
            yield Bar(file, f"{beside}: tok/s %", _gain(rate, "lmpool", over), least=0)
            yield Bar(file, f"{beside}: TTFT %", _gain(ttft, "lmpool", over), most=0)
            yield Bar(file, f"{beside}: TPOT %", _gain(tpot, "lmpool", over), most=5)


def _routing() -> Iterator[Bar]:
    for model in ("0.6b", "1.7b"):
        file, beside = f"routing-qwen3-{model}-5x", f"routing 5x {model}, routed beside round robin"
        rate = _gain("throughput_tok_s", "kv-routing", "multi-gpu")
        yield Bar(file, f"{beside}: tok/s %", rate, least=21.3)
        wait = _gain("ttft_ms.mean", "kv-routing", "multi-gpu")
        yield Bar(file, f"{beside}: TTFT %", wait, most=-25.2)


def _reuse() -> Iterator[Bar]:
    """Beside what Dynamo's simulator found on the same traces."""
    for trace, workers, least in (
        ("conversation", 4, 13.4),
        ("conversation", 8, 19.7),
        ("synthetic", 4, 31.1),
        ("synthetic", 8, 49.7),
    ):
        what = f"simulated reuse, {trace}, {workers} workers, %"
        yield Bar(f"sim-{trace}-{workers}", what, lambda f: f["reuse"] * 100, least=least)


BARS: tuple[Bar, ...] = (
    Bar("step", "decode 0.6B, 1 row, ms", _decode("0.6b", 1), most=1.6),
    Bar("step", "decode 0.6B, 64 rows, ms", _decode("0.6b", 64), most=3.0),
    Bar("step", "decode 0.6B, 256 rows, ms", _decode("0.6b", 256), most=8.5),
    Bar("step", "decode 1.7B, 1 row, ms", _decode("1.7b", 1), most=1.83),
    Bar("step", "decode 1.7B, 64 rows, ms", _decode("1.7b", 64), most=3.48),
    Bar("step", "decode 1.7B, 256 rows, ms", _decode("1.7b", 256), most=9.11),
    Bar("step", "prefill of 2,048, tok/s", lambda f: f["prefill_tok_s"]["2048"], least=400_000),
    Bar("step", "prefill of 8,192, tok/s", lambda f: f["prefill_tok_s"]["8192"], least=250_000),
    Bar(
        "engine",
        "pool of the bare step's rate, %",
        lambda f: f["pool_tok_s"] / f["bare_step_tok_s"] * 100,
        least=85,
    ),
    Bar(
        "engine",
        "pool beside generate_batch, times",
        lambda f: f["pool_tok_s"] / f["generate_batch_tok_s"],
        least=2,
    ),
    Bar(
        "engine",
        "p99 TPOT at half load, steps",
        lambda f: f["pool"]["half_load"]["p99_tpot_steps"],
        most=1.5,
    ),
    Bar("engine", "GPU idle between steps, %", lambda f: f["idle_share"] * 100, most=5),
    Bar("transfer", "peer, 8 blocks, GB/s", _rate("peer", 8), least=350),
    Bar("transfer", "peer, 128 blocks, GB/s", _rate("peer", 128), least=350),
    Bar("transfer", "nccl, 8 blocks, GB/s", _rate("nccl", 8), least=250),
    Bar("transfer", "nccl, 128 blocks, GB/s", _rate("nccl", 128), least=250),
    Bar("transfer", "step beside peer, %", _slowdown("peer"), most=10),
    Bar("transfer", "step beside nccl:max_ctas=4, %", _slowdown("nccl:max_ctas=4"), most=15),
    Bar(
        "transfer",
        "moves with other bytes",
        lambda f: sum(not row["byte_equal"] for row in f["rows"]),
        most=0,
    ),
    Bar("transfer", "survivor serves on after, s", lambda f: f["survivor_recovered_s"], most=2),
    Bar(
        "dispatch",
        "dispatch to publish, 8 blocks, p95 ms",
        lambda f: f["dispatch_to_publish_ms"]["p95"],
        most=5,
    ),
    Bar(
        "cost",
        "prediction, mean error %",
        lambda f: f["accuracy"]["learning"]["mean_error"] * 100,
        most=20,
    ),
    Bar("admit", "right to compute the shortest prefix", _right(0, "computed"), least=1),
    Bar("admit", "right to move the longest prefix", _right(-1, "moved"), least=1),
    Bar(
        "route",
        "route of no-op, 3 x 64",
        lambda f: _row(f["alone"], candidates=3, blocks=64)["ratio_p50"],
        most=1.8,
    ),
    Bar(
        "route",
        "route of no-op, 8 x 2,000",
        lambda f: _row(f["alone"], candidates=8, blocks=2000)["ratio_p50"],
        most=2.8,
    ),
    Bar(
        "route",
        "routes a server core, batches, /s",
        lambda f: _row(f["batched"], candidates=3, blocks=64)["routes_per_server_core_s"],
        least=30_000,
    ),
    Bar(
        "ingress",
        "ingress to first byte at 1,000/s, p50 us",
        lambda f: _row(f, what="pool", rate=1000.0)["p50_us"],
        most=1000,
    ),
    Bar(
        "ingress",
        "lost of 5,000/s",
        lambda f: _row(f, what="pool", rate=5000.0)["lost"],
        most=0,
    ),
    Bar(
        "gateway",
        "HTTP adds, JSON, p50 us",
        lambda f: _row(f, what="json", way="gateway")["added_p50_us"],
        most=250,
    ),
    Bar(
        "gateway",
        "HTTP adds, first event, p50 us",
        lambda f: _row(f, what="stream", way="gateway")["added_p50_us"],
        most=1000,
    ),
    Bar("restart", "8 x 100k pages routable after, s", lambda f: f["routable_s"], most=3),
    Bar(
        "restart",
        "another client waits for snapshots, ms",
        lambda f: f["bystander"]["max_us"] / 1000,
        most=5,
    ),
    *_routing(),
    *_skew(),
    *_reuse(),
)


def judge(file: str, found: Figures) -> Iterator[tuple[Bar, float]]:
    """Yield the bars of a file with their figures."""
    for bar in BARS:
        if bar.file == file:
            try:
                yield bar, float(bar.read(found))
            except (KeyError, StopIteration):
                continue


def table(folder: Path) -> str:
    """Return what the files of a folder, and of those in it, say of each bar: a line a bar."""
    lines = []
    for path in sorted(folder.rglob("*.json")):
        for bar, figure in judge(path.stem, json.loads(path.read_text(encoding="utf-8"))):
            verdict = "met" if bar.met(figure) else "NOT MET"
            lines.append(f"{bar.what:52} {figure:14,.3f}   {bar.bound:12} {verdict}")
    return "\n".join(lines)
