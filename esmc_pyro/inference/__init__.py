"""Algorithms: each takes a model and data and returns a ``Posterior``."""

from esmc_pyro.inference.analytic import PRESETS, fit_analytic
from esmc_pyro.inference.importance import importance_sample, log_weights
from esmc_pyro.inference.mcmc import fit_nuts
from esmc_pyro.inference.svi import fit_svi
from esmc_pyro.objectives import OBJECTIVES

__all__ = ["OBJECTIVES", "PRESETS", "fit_analytic", "fit_nuts", "fit_svi", "importance_sample", "log_weights"]
