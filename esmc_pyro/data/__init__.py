"""Datasets: one `Dataset`, readers for what people have, sets known by name, digit pictures, ways to lose labels."""

from esmc_pyro.data.corrupt import hide_entries, hide_rows, remove_ones
from esmc_pyro.data.dataset import Dataset
from esmc_pyro.data.digits import load_digit_pictures, make_digit_pictures
from esmc_pyro.data.errors import DataError
from esmc_pyro.data.extreme import read_extreme
from esmc_pyro.data.known import KNOWN_SETS, KnownSet
from esmc_pyro.data.load import load_dataset
from esmc_pyro.data.matlab import read_matlab
from esmc_pyro.data.meka import read_meka
from esmc_pyro.data.mulan import read_mulan
from esmc_pyro.data.npz import read_npz, write_npz
from esmc_pyro.data.simulate import Simulation, simulate
from esmc_pyro.data.svmlight import read_svmlight
from esmc_pyro.data.table import read_table

__all__ = [
    "KNOWN_SETS",
    "DataError",
    "Dataset",
    "KnownSet",
    "Simulation",
    "hide_entries",
    "hide_rows",
    "load_dataset",
    "load_digit_pictures",
    "make_digit_pictures",
    "read_extreme",
    "read_matlab",
    "read_meka",
    "read_mulan",
    "read_npz",
    "read_svmlight",
    "read_table",
    "remove_ones",
    "simulate",
    "write_npz",
]
