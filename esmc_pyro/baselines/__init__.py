"""The methods that ESMC is compared with, from their equations: each fits given labels and scores new rows.

>>> from esmc_pyro.baselines import tune
>>> tune("LEML", X, Y, seed=0).fit(X, Y).decision_function(X_test)  # doctest: +SKIP
"""

from esmc_pyro.baselines.base import Baseline
from esmc_pyro.baselines.binary_relevance import BR
from esmc_pyro.baselines.faie import FaIE
from esmc_pyro.baselines.fasttag import FastTag
from esmc_pyro.baselines.geneml import GenEML
from esmc_pyro.baselines.leml import LEML
from esmc_pyro.baselines.neighbours import KNN
from esmc_pyro.baselines.plst import CPLST, PLST
from esmc_pyro.baselines.sleec import SLEEC
from esmc_pyro.baselines.slrm import SLRM
from esmc_pyro.baselines.tuning import BASELINES, GRIDS, best_setting, tune

__all__ = [
    "BASELINES", "BR", "CPLST", "GRIDS", "KNN", "LEML", "PLST", "SLEEC", "SLRM", "Baseline", "FaIE", "FastTag",
    "GenEML", "best_setting", "tune",
]  # fmt: skip
