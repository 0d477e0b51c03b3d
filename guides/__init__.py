"""The variational side: each guide is a ``Guide``, chosen by name or passed as a class or object."""

from collections.abc import Callable
from functools import partial

from esmc_pyro.guides.amortized import AmortizedGuide
from esmc_pyro.guides.auto import AUTOGUIDES, MarginalGuide
from esmc_pyro.guides.base import Guide
from esmc_pyro.guides.doubly_stochastic import DoublyStochasticGuide
from esmc_pyro.guides.draws import DrawsGuide
from esmc_pyro.guides.paper import PaperGuide
from esmc_pyro.guides.start import label_informed_start

# what a name means to SVI: called with (model, X, Y, **options)
GUIDES: dict[str, Callable[..., Guide]] = {
    "paper": partial(PaperGuide, functions="optimal"),
    "doubly_stochastic": DoublyStochasticGuide,
    "amortized": AmortizedGuide,
    **{name: partial(MarginalGuide, auto=auto) for name, auto in AUTOGUIDES.items()},
}

__all__ = [
    "GUIDES",
    "AmortizedGuide",
    "DoublyStochasticGuide",
    "DrawsGuide",
    "Guide",
    "MarginalGuide",
    "PaperGuide",
    "label_informed_start",
]
