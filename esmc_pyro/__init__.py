"""ESMC in Pyro: multi-label classification when labels are missing."""

from esmc_pyro.data import Dataset, load_dataset
from esmc_pyro.estimator import ESMCClassifier

__all__ = ["Dataset", "ESMCClassifier", "load_dataset"]
