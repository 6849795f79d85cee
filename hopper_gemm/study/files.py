"""Files that are whole at every moment: written beside their place, then renamed into it."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file so that every reader, and every other writer, finds the old one or the new one and never a part."""
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise


def replace_json(path: Path, value: Any) -> None:
    """Write one value as JSON, as :func:`replace_file` does."""
    replace_file(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
