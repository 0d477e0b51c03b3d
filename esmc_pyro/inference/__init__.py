"""Algorithms: each takes a model and data and returns a ``Posterior``."""

from esmc_pyro.inference.svi import OBJECTIVES, fit_svi

__all__ = ["OBJECTIVES", "fit_svi"]
