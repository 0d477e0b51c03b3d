"""The latent space is defined up to rotation or permutation, and sign; this turns draws the same way round, for plots.

With an isotropic kernel above it, ``c -> c Q`` for any orthogonal ``Q`` (L x L), with ``u_c -> Q' u_c``,
``S_z -> S_z Q`` and the slopes of a linear mean of ``z`` ``W -> Q' W``, changes neither the prior of ``u_c`` nor
``k(c, S_z)`` nor ``z``. With a length-scale for each dimension (ARD), or a ``Laplacian``, only those ``Q`` are left
that permute the dimensions, with their length-scales, and flip signs. So two fits, or two chains, may agree about
everything but ``c``.

What is identified (``z``, suitability, kernel scales) needs no alignment, and diagnostics belong there. An aligned
``c`` is for the eye: alignment removes true posterior variance along the orbit of rotations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pyro.contrib.gp.kernels import Combination, Isotropy, Kernel
from scipy.linalg import orthogonal_procrustes
from scipy.optimize import linear_sum_assignment

from esmc_pyro.models.kernels import distance_norm
from esmc_pyro.validation import check_choice, check_number

Array = npt.NDArray[np.float64]
SYMMETRIES = ("rotation", "permutation")


class Aligned(NamedTuple):
    """Draws turned to the reference (draws x rows x L), and the map of each draw (draws x L x L): ``c_s = draw_s Q_s``.

    ``reference`` (rows x L) is what they were turned to.
    """

    c: Array
    maps: Array
    reference: Array


def symmetry(kernel: Kernel) -> str:
    """Which maps of its inputs leave ``kernel`` unchanged: ``"rotation"``, or ``"permutation"`` with signs (ARD, or
    ``Laplacian``).
    """
    if isinstance(kernel, Combination):
        parts = [part for part in (kernel.kern0, kernel.kern1) if isinstance(part, Kernel)]
        return min(symmetry(part) for part in parts)  # the smaller group; "permutation" comes first
    if not isinstance(kernel, Isotropy) or list(kernel.active_dims) != list(range(kernel.input_dim)):
        raise ValueError(
            "kernel must be a stationary kernel of all its inputs; got "
            f"{type(kernel).__name__} of inputs {list(kernel.active_dims)}, whose symmetry is not known here"
        )
    one_scale = kernel.lengthscale.dim() == 0 or len(kernel.lengthscale) == 1
    return "rotation" if one_scale and distance_norm(kernel) == 2 else "permutation"


def orthogonal_map(c: Any, reference: Any, symmetry: str = "rotation") -> Array:
    """The orthogonal ``Q`` (L x L) that brings ``c Q`` closest to ``reference`` (rows x L each), in squared distance.

    ``"rotation"``: any orthogonal map, reflections too (Procrustes). ``"permutation"``: columns permuted, signs
    flipped; the best assignment of columns by ``|c' reference|``, each with the sign of its product.
    """
    c, reference = _matrix(c, "c"), _matrix(reference, "reference")
    if c.shape != reference.shape:
        raise ValueError(f"c and reference must have the same shape; got {c.shape} and {reference.shape}")
    check_choice(symmetry, SYMMETRIES, "symmetry")
    if symmetry == "rotation":
        return orthogonal_procrustes(c, reference)[0]
    product = c.T @ reference
    rows, columns = linear_sum_assignment(-np.abs(product))
    found = np.zeros_like(product)
    found[rows, columns] = np.where(product[rows, columns] < 0, -1.0, 1.0)
    return found


def align(draws: Any, reference: Any = None, symmetry: str = "rotation", *, iterations: int = 20) -> Aligned:
    """Turn each of ``draws`` (draws x rows x L, or one fit's rows x L) to ``reference`` (rows x L).

    Without a reference the draws are turned to their own mean: it begins at the first draw, and draws are turned to it
    and averaged again until nothing changes or ``iterations`` are done (generalised Procrustes). ``symmetry`` is what
    ``symmetry(kernel)`` says of the kernel of the layer above ``c``.
    """
    values = np.asarray(draws, dtype=float)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or 0 in values.shape or not np.isfinite(values).all():
        raise ValueError(f"draws must be finite, draws x rows x L; got shape {values.shape}")
    check_number(iterations, "iterations", low=1, whole=True)

    def turned(to: Array) -> tuple[Array, Array]:
        maps = np.stack([orthogonal_map(c, to, symmetry) for c in values])
        return values @ maps, maps

    if reference is not None:
        target = _matrix(reference, "reference")
        return Aligned(*turned(target), target)
    target = values[0]
    for _ in range(iterations):
        mean = turned(target)[0].mean(0)
        still = np.allclose(mean, target, rtol=0, atol=1e-9 * np.abs(mean).max())
        target = mean
        if still:
            break
    return Aligned(*turned(target), target)


def _matrix(value: Any, name: str) -> Array:
    array = np.asarray(value, dtype=float)
    if array.ndim != 2 or 0 in array.shape or not np.isfinite(array).all():
        raise ValueError(f"{name} must be a finite matrix, rows x L; got shape {array.shape}")
    return array
