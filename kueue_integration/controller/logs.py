"""One JSON object per log line."""

from __future__ import annotations

import json
import logging
import sys

from ..kube import server_time

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """`extra` fields become fields of the line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": server_time.to_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name.rpartition(".")[2],
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD and v is not None})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def setup(level: str) -> None:
    """Raises ValueError for an unknown level."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("aiohttp.access", "urllib3", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
