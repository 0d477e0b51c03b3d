"""The generative side: layers, kernels, likelihoods, and the paper's rules for their sizes."""

from esmc_pyro.models.esmc import ESMC, observed
from esmc_pyro.models.kernels import KERNELS, make_kernel
from esmc_pyro.models.layer import Layer
from esmc_pyro.models.likelihoods import (
    EEOE,
    LIKELIHOODS,
    MPU,
    Bernoulli,
    Experts,
    Gaussian,
    LearnedEEOE,
    LearnedMPU,
    Likelihood,
    NoisyOr,
    PolyaGamma,
    Probit,
    Propensity,
    make_likelihood,
)
from esmc_pyro.models.linalg import NotPositiveDefiniteError, jittered_cholesky
from esmc_pyro.models.marginal import Marginal

__all__ = [
    "EEOE",
    "ESMC",
    "KERNELS",
    "LIKELIHOODS",
    "MPU",
    "Bernoulli",
    "Experts",
    "Gaussian",
    "Layer",
    "LearnedEEOE",
    "LearnedMPU",
    "Likelihood",
    "Marginal",
    "NoisyOr",
    "NotPositiveDefiniteError",
    "PolyaGamma",
    "Probit",
    "Propensity",
    "jittered_cholesky",
    "make_kernel",
    "make_likelihood",
    "observed",
]
