"""Results as pictures. Needs matplotlib (the `bench` extra); whoever lacks it gets no picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PANELS = (
    ("tokens a second", (("throughput_tok_s", "all"), ("goodput_tok_s", "within SLA"))),
    ("milliseconds", (("ttft_ms.mean", "TTFT"), ("tpot_ms.mean", "TPOT"))),
    (
        "share",
        (("workers.prefix_hit_rate", "requests with a hit"), ("workers.token_reuse", "tokens")),
    ),
    ("blocks", (("transfers.transfer_blocks", "moved"), ("transfers.released_blocks", "freed"))),
)
COLOURS = ("#33658a", "#f6ae2d", "#86bbd8", "#758e4f")


def _pyplot() -> Any:
    """Return matplotlib's pyplot on a canvas without a screen, or None."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _bars(axes: Any, result: Mapping[str, Any], figures: Sequence[tuple[str, str]]) -> None:
    modes = list(result["results"])
    width = 0.8 / len(figures)
    for place, (name, label) in enumerate(figures):
        found = [result["results"][mode]["summary"].get(name, {"mean": 0.0}) for mode in modes]
        axes.bar(
            [at + (place - (len(figures) - 1) / 2) * width for at in range(len(modes))],
            [each["mean"] for each in found],
            width,
            yerr=[each.get("ci95", 0.0) for each in found],
            capsize=2,
            label=label,
            color=COLOURS[place],
        )
    axes.set_xticks(range(len(modes)), modes, rotation=20, ha="right", fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def plot_matrix(result: Mapping[str, Any], path: Path) -> bool:
    """Draw a workload's modes side by side; False if there is nothing to draw with."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    facts = result["metadata"]
    figure, panels = pyplot.subplots(2, 2, figsize=(9, 6), layout="constrained")
    for axes, (unit, figures) in zip(panels.flat, PANELS, strict=True):
        _bars(axes, result, figures)
        axes.set_ylabel(unit, fontsize=9)
        axes.set_ylim(0, None if axes.dataLim.height else 1)
    arguments = facts["arguments"]
    figure.suptitle(
        f"{facts['benchmark']}, {arguments['model']}, {arguments['workers']} workers, "
        f"{arguments['repetitions']} repetitions; bars: 95 % intervals",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def plot_load(result: Mapping[str, Any], path: Path) -> bool:
    """Draw TTFT and E2E against the rate of arrivals, a line a mode; False without matplotlib."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    found, facts = result["results"], result["metadata"]
    modes = list(dict.fromkeys(key.partition("@")[0] for key in found))
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(panels, ("ttft_ms", "e2e_ms"), strict=True):
        for mode, colour in zip(modes, COLOURS, strict=False):
            rows = [row["summary"] for key, row in found.items() if key.startswith(f"{mode}@")]
            rows.sort(key=lambda row: row["rate"]["mean"])
            rates = [row["rate"]["mean"] for row in rows]
            for point, style in (("p50", "-"), ("p90", "--")):
                values = [row[f"{name}.{point}"]["mean"] for row in rows]
                axes.plot(rates, values, style, marker="o", ms=3, color=colour,
                          label=f"{mode}, {point}")  # fmt: skip
        axes.set(xlabel="requests a second", ylabel=f"{name.split('_')[0].upper()}, ms")
        axes.set_yscale("log")
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    arguments = facts["arguments"]
    figure.suptitle(
        f"{facts['benchmark']}, {arguments['model']}, {arguments['arrivals']} arrivals", fontsize=10
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
