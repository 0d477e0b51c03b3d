"""Datasets: one `Dataset`, readers for what people have, and the sets known by name."""

from esmc_pyro.data.dataset import Dataset
from esmc_pyro.data.errors import DataError
from esmc_pyro.data.extreme import read_extreme
from esmc_pyro.data.known import KNOWN_SETS, KnownSet
from esmc_pyro.data.load import load_dataset
from esmc_pyro.data.matlab import read_matlab
from esmc_pyro.data.meka import read_meka
from esmc_pyro.data.mulan import read_mulan
from esmc_pyro.data.npz import read_npz, write_npz
from esmc_pyro.data.svmlight import read_svmlight
from esmc_pyro.data.table import read_table

__all__ = [
    "KNOWN_SETS",
    "DataError",
    "Dataset",
    "KnownSet",
    "load_dataset",
    "read_extreme",
    "read_matlab",
    "read_meka",
    "read_mulan",
    "read_npz",
    "read_svmlight",
    "read_table",
    "write_npz",
]
