"""Parts of a model that were part of another: copied, since Pyro lets a part have one whole only."""

from __future__ import annotations

import copy
from typing import TypeVar

from pyro.nn import PyroModule

Part = TypeVar("Part", bound=PyroModule)


def unused(part: Part) -> Part:
    """A layer, kernel or likelihood; one that was run before, by itself or in a model, is copied as if it were new."""
    inner = [module for module in part.modules() if isinstance(module, PyroModule)]
    if not any(module._pyro_context.used for module in inner):
        return part
    made = copy.deepcopy(part)
    for module in made.modules():
        if isinstance(module, PyroModule):
            module._pyro_context = type(module._pyro_context)()
    made._pyro_set_supermodule(made._pyro_name, made._pyro_context)  # one context for all of it
    return made
