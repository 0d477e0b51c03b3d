"""Coverage-guided fuzzing of one reader with atheris (`pip install atheris`), for longer runs than the test suite's.

    python tests/fuzz/fuzz_readers.py meka -max_total_time=60

What follows the reader's name goes to libFuzzer. Each run starts from the good file the tests use. Anything but a
dataset or a `DataError` stops it, and libFuzzer keeps the bytes in a file called crash-....
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

with atheris.instrument_imports(include=["esmc_pyro.data", "arff", "defusedxml"]):
    from mutations import is_read_or_refused
    from sample_files import write_mat, write_parquet
    from test_fuzz_readers import TEXT

    from esmc_pyro.data import Dataset, read_matlab, read_npz, read_table, write_npz

from sample_files import X, Y


def targets(folder: Path) -> dict[str, tuple]:
    """Reader, file name and good bytes, by the name given on the command line."""
    write_npz(Dataset("good", X, Y), folder / "good.npz")
    binary = {
        "matlab": (read_matlab, "a.mat", write_mat(folder / "good.mat").read_bytes()),
        "npz": (read_npz, "a.npz", (folder / "good.npz").read_bytes()),
        "parquet": (read_table, "a.parquet", write_parquet(folder / "good.parquet").read_bytes()),
    }
    return {name.replace(" ", "-"): target for name, target in TEXT.items()} | binary


def main() -> None:
    """Fuzz the reader that the first argument names."""
    with tempfile.TemporaryDirectory() as scratch:
        known = targets(Path(scratch))
        if len(sys.argv) < 2 or sys.argv[1] not in known:
            sys.exit(f"the first argument is {sys.argv[1:2]}, expected one of {', '.join(known)}")
        read, name, good = known[sys.argv.pop(1)]
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        (corpus / "good").write_bytes(good)
        atheris.Setup([*sys.argv, str(corpus)], lambda content: is_read_or_refused(read, name, content))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
