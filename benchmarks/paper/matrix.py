"""Runs workloads by modes by repetitions, on as few starts of a pool as will do.

Workloads of one cache size share their pools. Modes take turns within a repetition, each time
beginning with another one, so that a machine that slows down slows all of them. What a result file
already holds is not measured again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.paper.modes import MODES, Mode
from benchmarks.paper.profile import dataset_profile
from benchmarks.paper.result import ResultFile
from benchmarks.paper.served import Plan, Served, served
from benchmarks.paper.workloads import Workload, workload
from lmpoold.protocol.hashing import domain_root
from lmpoold.text.fingerprint import fingerprint
from lmpoold.text.folder import cache_root, resolve
from lmpoold.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run of the matrix.

    Attributes:
        chars: of a paragraph; with it shrink prompts and caches.
        requests: of each workload, 0 for all.
        slas_ms: limits of E2E, the first for the goodput.
        oracle: tell the pool between phases what comes; a variant, labelled in the file's name.
        constants: of `cfg`, other than the defaults.
    """

    model: str = "random:tiny-qwen3"
    device: str = "cpu"
    dtype: str = "auto"
    workers: int = 2
    lmpoolds: int = 1
    threads: int = 1
    block_size: int = 16
    chars: int = 23
    requests: int = 0
    repetitions: int = 5
    seed: int = 0
    slas_ms: tuple[float, ...] = (500.0, 1000.0, 2000.0, 5000.0)
    oracle: bool = False
    modes: tuple[str, ...] = tuple(MODES)
    constants: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """Return what a result must have been measured with to be taken up."""
        return {name: getattr(self, name) for name in self.__slots__}

    def label(self) -> str:
        """Return the model's name in file names."""
        return Path(self.model.partition(":")[2] or self.model).name.removesuffix(".gguf")


def result_name(name: str, settings: Settings) -> str:
    """Return the file name of a workload's result."""
    kind, _, length = name.partition("-") if name.startswith("routing") else (name, "", "")
    parts = [kind, settings.label(), length, "oracle" if settings.oracle else ""]
    return "-".join(part for part in parts if part) + ".json"


@dataclass(slots=True)
class Job:
    """One workload with the file that its figures go to."""

    name: str
    work: Workload
    file: ResultFile
    profile: dict[str, Any]

    def lacks(self, settings: Settings, *, many: bool) -> bool:
        """Tell whether a pool of one, or of many, has anything to do for it."""
        modes = [MODES[name] for name in settings.modes]
        wanted = [mode for mode in modes if mode.many is many]
        return any(self.file.done(mode.name) < settings.repetitions for mode in wanted)


class Matrix:
    """A run: the jobs, and what is said about it while it goes on."""

    def __init__(
        self, names: Sequence[str], settings: Settings, out: Path, *, fresh: bool = False
    ) -> None:
        """Make the prompts, say what they have to give, and find what is there already."""
        self._settings = settings
        folder = resolve(settings.model, cache=cache_root(os.environ))
        self._text, self._mark = TextModel.load(folder), fingerprint(folder)
        self._jobs: list[Job] = []
        self._longest = 0
        for name in names:
            work = workload(
                name, seed=settings.seed, chars=settings.chars, requests=settings.requests
            )
            profile = self.profile(work)
            file = ResultFile(
                out / result_name(name, settings),
                name,
                settings.arguments(),
                profile,
                fresh=fresh,
            )
            self._jobs.append(Job(name, work, file, profile))
        self._began_s = time.monotonic()
        self._total = len(self._jobs) * len(settings.modes) * settings.repetitions
        there = (job.file.done(mode) for job in self._jobs for mode in settings.modes)
        self._done = self._skipped = sum(there)

    def profile(self, work: Workload) -> dict[str, Any]:
        """Return what a workload has to give, and make room for its longest request."""
        size = self._settings.block_size
        tokens = [self._text.encode(prompt.text) for prompt in work.prompts]
        found = dataset_profile(tokens, size, domain_root(self._mark, size))
        answers = (prompt.max_tokens or work.max_tokens for prompt in work.prompts)
        longest = max(map(sum, zip(map(len, tokens), answers, strict=True))) + 1
        self._longest = max(self._longest, longest)
        return found

    def plan(self, budget_tokens: int) -> Plan:
        """Return what is started to serve with so much cache a rank."""
        settings = self._settings
        return Plan(
            model=settings.model,
            device=settings.device,
            dtype=settings.dtype,
            block_size=settings.block_size,
            blocks=max(budget_tokens, self._longest + settings.block_size) // settings.block_size,
            max_model_len=self._longest,
            threads=settings.threads,
            lmpoolds=settings.lmpoolds,
            mark=self._mark,
            text=self._text,
            options=settings.options,
        )

    async def run(self, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
        """Measure what is lacking; returns the results by workload."""
        for job in self._jobs:
            say(
                f"{job.name}: {job.profile['total_requests']} requests, "
                f"{job.profile['total_prompt_tokens']:,} tokens, "
                f"{job.profile['token_prefix_share_ratio']:.1%} of them could be shared"
            )
        if self._done:
            say(f"{self._done} of {self._total} trials are there already")
        for budget in sorted({job.work.budget_tokens for job in self._jobs}):
            jobs = [job for job in self._jobs if job.work.budget_tokens == budget]
            for many in (False, True):
                if any(job.lacks(self._settings, many=many) for job in jobs):
                    await self._on_one_pool(jobs, budget, many=many, say=say)
        return {job.name: job.file.finish() for job in self._jobs}

    async def _on_one_pool(
        self, jobs: Sequence[Job], budget: int, *, many: bool, say: Callable[[str], None]
    ) -> None:
        settings = self._settings
        ranks = settings.workers if many else 1
        plan = self.plan(budget)
        modes = [MODES[name] for name in settings.modes if MODES[name].many is many]
        say(f"starting {ranks} worker{'s' * many} of {plan.blocks} blocks of {plan.block_size}")
        async with served(plan, ranks) as pool:
            for job in jobs:
                for turn in range(settings.repetitions):
                    first = turn % len(modes)
                    for mode in modes[first:] + modes[:first]:
                        if job.file.done(mode.name) <= turn:
                            await self._trial(pool, job, mode, say)

    async def _trial(self, pool: Served, job: Job, mode: Mode, say: Callable[[str], None]) -> None:
        settings = self._settings
        figures = await pool.trial(
            job.work,
            mode,
            slas_ms=settings.slas_ms,
            oracle=settings.oracle,
            constants=settings.constants,
        )
        job.file.add(mode.name, figures)
        self._done += 1
        each_s = (time.monotonic() - self._began_s) / (self._done - self._skipped)
        left_min = each_s * (self._total - self._done) / 60
        say(
            f"[{self._done}/{self._total}] {job.name:11} {mode.name:11} "
            f"{figures['wall_s']:6.1f} s {figures['throughput_tok_s']:7.1f} tok/s, TTFT "
            f"{figures['ttft_ms']['mean']:7.1f} ms, "
            f"reuse {figures['workers']['token_reuse']:5.1%}, "
            f"moved {figures['transfers']['transfer_blocks']} blocks; {left_min:.0f} min left"
        )
