"""Log set-up: one JSON line an event on stderr, facts as fields."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

requests_log = logging.getLogger("lmpool.requests")
"""A line a request and process, where somebody wants them: always with the field `request`."""

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, then the `extra` fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "log": record.name,
            "msg": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _PLAIN)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def log_request(event: str, request_id: str, **facts: str | int) -> None:
    """Log that something became of a request, where somebody wants to know."""
    if requests_log.isEnabledFor(logging.INFO):
        requests_log.info(event, extra={"request": request_id, **facts})


def log_to_stderr(level: str, *, requests: bool = False) -> None:
    """Send everything from `level` up to stderr, and with `requests` a line a request too."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
    requests_log.setLevel(logging.INFO if requests else logging.WARNING)
