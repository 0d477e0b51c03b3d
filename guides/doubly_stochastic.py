"""The doubly stochastic guide: only ``q(u)`` is learned, and every local conditional is the model's own."""

from __future__ import annotations

from esmc_pyro.guides.whitened import WhitenedGuide


class DoublyStochasticGuide(WhitenedGuide):
    """``q = q(u) p(f | u) p(c_hat | u, x) p(c | c_hat) p(z_hat | c, u) p(z | z_hat) p(E | z, y)``, nothing kept a row.

    ``q(u)`` and its options are those of ``WhitenedGuide``. Nothing grows with the number of rows.
    """
