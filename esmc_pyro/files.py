"""Files are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from os import PathLike
from pathlib import Path


def write_atomic(path: str | PathLike[str], content: str | bytes) -> Path:
    """Write ``content`` (text as UTF-8) to ``path``; a reader sees the old file or the new one, never half of one.

    The content goes to a temporary name in the same folder, which is then renamed. Missing folders are made. A link
    stays, and what it leads to is written.
    """
    given, path = Path(path), Path(os.path.realpath(path))
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a power cut after the rename could leave an empty file under the final name
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return given
