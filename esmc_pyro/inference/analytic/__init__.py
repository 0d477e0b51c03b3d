"""The analytic-bound solver: the paper's coordinate ascent, on the same model and with the same result as SVI."""

from esmc_pyro.inference.analytic.fit import fit_analytic
from esmc_pyro.inference.analytic.options import Options
from esmc_pyro.inference.analytic.presets import PRESETS, Setting
from esmc_pyro.inference.analytic.solver import Solver

__all__ = ["PRESETS", "Options", "Setting", "Solver", "fit_analytic"]
