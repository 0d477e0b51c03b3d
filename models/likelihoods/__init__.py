"""Likelihoods ``p(y | z)``: why a suitable label may be missing from the data.

Protocol (``Likelihood``). A likelihood works on each label of each instance alone. It owes one method::

    distribution(z)                    the distribution of y given z, elementwise            (..., n, K)

and inherits, or overrides where a closed form exists::

    log_prob(y, z)                     ln p(y | z)                                           (..., n, K)
    expected_log_prob(y, mean, var)    E ln p(y | z) for z ~ N(mean, var)                    (..., n, K)
    prob(z)                            P(y = 1 | z)                                          (..., n, K)
    expected_prob(mean, var)           E P(y = 1 | z) for z ~ N(mean, var)                   (..., n, K)
    suitability(z)                     sigma(lambda z), the probability that the label fits  (..., n, K)
    missing(z)                         the probability that it fits though y = 0             (..., n, K)
    rough_z(y)                         a z to start a fit from                               (..., n, K)
    best_constant(frequency)           the z that suits a label as frequent as this          (K,)
    from_labels(Y, **options)          the likelihood, with what it needs to know taken from labels Y (N x K)
    forward(z, y, known)               the Pyro statements of the model, inside its plate over instances
    guide(z, y, known)                 the Pyro statements that draw the likelihood's own latent sites, if any

``y`` is 0 or 1; ``known`` is False where the data do not say, and such an entry adds nothing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from esmc_pyro.models.likelihoods.base import Likelihood, gauss_hermite, required_options
from esmc_pyro.models.likelihoods.experts import EEOE, Experts, ExpertsAgreement, LearnedEEOE
from esmc_pyro.models.likelihoods.links import Bernoulli, Gaussian, PolyaGamma, Probit
from esmc_pyro.models.likelihoods.missing import MPU, LearnedMPU, NoisyOr, Propensity

__all__ = [
    "EEOE",
    "LIKELIHOODS",
    "MPU",
    "Bernoulli",
    "Experts",
    "ExpertsAgreement",
    "Gaussian",
    "LearnedEEOE",
    "LearnedMPU",
    "Likelihood",
    "NoisyOr",
    "PolyaGamma",
    "Probit",
    "Propensity",
    "gauss_hermite",
    "make_likelihood",
]

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "experts": Experts,
    "eeoe": EEOE,
    "eeoe_learned": LearnedEEOE,
    "bernoulli": Bernoulli,
    "polya_gamma": PolyaGamma,
    "probit": Probit,
    "gaussian": Gaussian,
    "mpu": MPU,
    "mpu_learned": LearnedMPU,
    "propensity": Propensity,
    "noisy_or": NoisyOr,
}


def make_likelihood(name: str | Likelihood, Y: Tensor | None = None, **options: Any) -> Likelihood:
    """The likelihood called ``name`` with its options, or ``name`` itself if it is a likelihood already.

    What is not among the options is taken from the labels ``Y`` (N x K of 0, 1, NaN), if they are given.
    """
    if isinstance(name, Likelihood):
        return name
    if name not in LIKELIHOODS:
        raise ValueError(f"likelihood must be a Likelihood or one of {sorted(LIKELIHOODS)}; got {name!r}")
    kind = LIKELIHOODS[name]
    if Y is not None:
        return kind.from_labels(Y, **options)
    missing = required_options(kind, options)
    if missing:
        raise ValueError(
            f"the likelihood {name!r} needs {' and '.join(missing)} where there are no labels to take it from; "
            f"pass an object, {kind.__name__}({missing[0]}=...)"
        )
    return kind(**options)
