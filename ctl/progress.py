"""How far the workers are with loading: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lmpoold.protocol.errors import DecodeError


def read_boot(text: str) -> tuple[str, int, int]:
    """Read a boot key, `stage done total`; DecodeError if it is none."""
    try:
        stage, done, total = text.rsplit(" ", 2)
        return stage, int(done), int(total)
    except ValueError:
        raise DecodeError(f"not a boot state: {text[:40]!r}") from None


class Progressing:
    """Shows one line a worker until each is up; also the way to say anything meanwhile."""

    def __init__(self, out: TextIO | None = None) -> None:
        """Write to `out`, standard output by default."""
        self._console = Console(file=out or sys.stdout, highlight=False)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._stages: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[stage]}"),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bars as they stand; `say` goes on working."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def say(self, text: str) -> None:
        """Print a line, above the bars if there are any; never wrapped or cut."""
        self._console.print(text, markup=False, soft_wrap=True)

    def update(self, stages: Mapping[str, tuple[str, int, int]]) -> None:
        """Show where each worker stands: name -> (stage, done, total); total 0 is unknown."""
        for name, (stage, done, total) in stages.items():
            if self._bars is not None:
                if name not in self._tasks:
                    self._tasks[name] = self._bars.add_task(name, total=None, stage=stage)
                known = total or None
                self._bars.update(self._tasks[name], completed=done, total=known, stage=stage)
            elif self._stages.get(name) != stage:
                self.say(f"{name}: {stage}")
            self._stages[name] = stage
