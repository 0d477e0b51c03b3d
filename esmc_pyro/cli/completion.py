"""What the shell offers after Tab; each list is made without PyTorch, so that it comes at once."""

from __future__ import annotations

import os
from pathlib import Path

from esmc_pyro.cli.settings import KEYS


def complete_data(incomplete: str) -> list[str]:
    """`digits`, the folders under ESMC_DATA, and paths."""
    root = Path(os.environ.get("ESMC_DATA", "") or os.devnull)
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
    return [name for name in ("digits", *folders) if name.startswith(incomplete)] + complete_path(incomplete)


def complete_path(incomplete: str) -> list[str]:
    """Files and folders that start so; folders end in a slash."""
    folder, start = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(folder or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        os.path.join(folder, entry.name) + ("/" if entry.is_dir() else "")
        for entry in entries
        if entry.name.startswith(start) and (start or not entry.name.startswith("."))
    ]


def complete_setting(incomplete: str) -> list[str]:
    """`key=` for every setting of the estimator."""
    return [f"{key}=" for key in KEYS if key.startswith(incomplete)]
