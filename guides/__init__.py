"""The variational side: each guide is a ``Guide``, chosen by name or passed as a class or object."""

from esmc_pyro.guides.base import Guide
from esmc_pyro.guides.doubly_stochastic import DoublyStochasticGuide
from esmc_pyro.guides.paper import PaperGuide
from esmc_pyro.guides.start import label_informed_start

GUIDES: dict[str, type[Guide]] = {
    "paper": PaperGuide,
    "doubly_stochastic": DoublyStochasticGuide,
}

__all__ = ["GUIDES", "DoublyStochasticGuide", "Guide", "PaperGuide", "label_informed_start"]
