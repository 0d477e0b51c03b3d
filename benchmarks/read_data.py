"""Read every known dataset found in the folder ESMC_DATA names, check it, and print sizes and seconds.

ESMC_DATA=folder python benchmarks/read_data.py
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pandas as pd

from esmc_pyro.data import KNOWN_SETS, DataError, load_dataset

COLUMNS = ["name", "train_rows", "test_rows", "features", "labels", "labels_per_row", "label_density"]


def main() -> int:
    """Print the table; 1 when a set that is there does not read as expected, 2 when ESMC_DATA names no folder."""
    folder = Path(os.environ.get("ESMC_DATA", ""))
    if "ESMC_DATA" not in os.environ or not folder.is_dir():
        print(f"ESMC_DATA is {os.environ.get('ESMC_DATA')!r}, expected the folder of the datasets.", file=sys.stderr)
        return 2
    rows, wrong = [], 0
    for name in KNOWN_SETS:
        if not (folder / name).is_dir():
            print(f"{name}: not there, passed over", file=sys.stderr)
            continue
        started = time.perf_counter()
        try:
            summary = load_dataset(name).summary()
        except DataError as error:
            print(error, file=sys.stderr)
            wrong += 1
            continue
        rows.append({column: summary[column] for column in COLUMNS} | {"seconds": time.perf_counter() - started})
    print(pd.DataFrame(rows).round(3).to_string(index=False))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
