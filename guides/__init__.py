"""The variational side: each guide is a ``Guide``, chosen by name or passed as a class or object."""

from collections.abc import Callable
from functools import partial

from esmc_pyro.guides.base import Guide
from esmc_pyro.guides.doubly_stochastic import DoublyStochasticGuide
from esmc_pyro.guides.paper import PaperGuide
from esmc_pyro.guides.start import label_informed_start

# what a name means to SVI: called with (model, X, Y, **options)
GUIDES: dict[str, Callable[..., Guide]] = {
    "paper": partial(PaperGuide, functions="optimal"),
    "doubly_stochastic": DoublyStochasticGuide,
}

__all__ = ["GUIDES", "DoublyStochasticGuide", "Guide", "PaperGuide", "label_informed_start"]
