"""Any guide, any likelihood, any algorithm: one way to fit them, and the table of what it refuses and why.

``python -m esmc_pyro.compatibility`` prints the table as Markdown.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from esmc_pyro.guides import GUIDES, Guide
from esmc_pyro.inference import OBJECTIVES, fit_analytic, fit_nuts, fit_svi
from esmc_pyro.models import ESMC, LIKELIHOODS, make_likelihood
from esmc_pyro.posterior import Posterior
from esmc_pyro.validation import check_choice

# these two give a guide of their own; SVI fits the guide it is given
OWN_GUIDE = {"analytic": "paper", "nuts": "draws"}
ALGORITHMS: dict[str, Callable[..., Posterior]] = {
    **{f"svi-{objective}": partial(fit_svi, objective=objective) for objective in OBJECTIVES},
    "analytic": fit_analytic,
    "nuts": fit_nuts,
}
TABLE_GUIDES = (*GUIDES, "draws")
NEEDED = {"mpu": {"c": 0.3}}  # options that no data could tell
Table = Mapping[tuple[str, str, str], str | None]  # (guide, algorithm, likelihood) -> a sentence, or None if it runs


def fit(
    model: ESMC,
    X: Any,
    Y: Any,
    X_unlabeled: Any = None,
    *,
    algorithm: str = "svi-trace",
    guide: str | Guide | Callable[..., Guide] | None = None,
    **options: Any,
) -> Posterior:
    """Fit ``model`` by an algorithm of ``ALGORITHMS`` with a guide; returns a ``Posterior``.

    ``X`` is N x F, ``Y`` N x K of 0, 1 and NaN for unknown, ``X_unlabeled`` I x F. ``guide=None`` is the algorithm's
    own, for SVI ``fit_svi``'s default. ``options`` are those of ``fit_svi``, ``fit_analytic`` or ``fit_nuts``. What has
    no meaning together is refused in one sentence, by whoever cannot do it.
    """
    check_choice(algorithm, ALGORITHMS, "algorithm")
    if algorithm in OWN_GUIDE:
        own = OWN_GUIDE[algorithm]
        if not (guide is None or (isinstance(guide, str) and guide == own)):
            raise ValueError(f"the algorithm {algorithm!r} gives a guide of its own, {own!r}, and fits no other")
    elif isinstance(guide, str) and guide == OWN_GUIDE["nuts"]:
        raise ValueError(f"the guide {guide!r} is what the algorithm 'nuts' gives; SVI has nothing to learn in it")
    elif guide is not None:
        options["guide"] = guide
    return ALGORITHMS[algorithm](model, X, Y, X_unlabeled, **options)


def refusal(guide: str, algorithm: str, likelihood: str) -> str | None:
    """The sentence with which a fit of these three is refused; None if it runs and predicts, on a few rows."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    Y = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, torch.nan], [1, 0], [0, 1]], dtype=X.dtype)
    made = make_likelihood(likelihood, Y, **NEEDED.get(likelihood, {}))
    model = ESMC.from_data(X, Y, [1], likelihood=made, pseudo=2, alpha=0.3, beta=0.3, gamma=0.3)
    steps = {"analytic": {"sweeps": 1}, "nuts": {"chains": 1, "warmup": 2, "draws": 2}}.get(algorithm, {"epochs": 1})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # so short a chain has divergences
            posterior = fit(model, X[:8], Y, X[8:], algorithm=algorithm, guide=guide, progress=False, **steps)
    except ValueError as error:
        return str(error)
    if not torch.isfinite(posterior.predict(X)).all():
        raise FloatingPointError(f"guide={guide!r}, algorithm={algorithm!r}, likelihood={likelihood!r} do not predict")
    return None


def table() -> Table:
    """``refusal`` of everything: a minute of fits."""
    return {
        (guide, algorithm, likelihood): refusal(guide, algorithm, likelihood)
        for guide in TABLE_GUIDES
        for algorithm in ALGORITHMS
        for likelihood in LIKELIHOODS
    }


def markdown(refusals: Table) -> str:
    """A row for each guide, a column for each algorithm; notes say why, without the end that names what came."""
    notes: dict[str, int] = {}
    lines = [f"| guide | {' | '.join(ALGORITHMS)} |", f"|---|{'---|' * len(ALGORITHMS)}"]
    for guide in TABLE_GUIDES:
        cells = []
        for algorithm in ALGORITHMS:
            refused = {name: refusals[guide, algorithm, name] for name in LIKELIHOODS}
            said = {name: sentence for name, sentence in refused.items() if sentence is not None}
            why = dict.fromkeys(sentence.split("; got ")[0] for sentence in said.values())
            marks = sorted(notes.setdefault(sentence, len(notes) + 1) for sentence in why)
            which = "yes" if not said else "–" if len(said) == len(refused) else f"not {', '.join(said)}"
            cells.append(" ".join([which, *(f"[{mark}]" for mark in marks)]))
        lines.append(f"| `{guide}` | {' | '.join(cells)} |")
    listed = [f"- [{mark}] {sentence}" for sentence, mark in notes.items()]
    return "\n".join([*lines, "", f"Likelihoods: {', '.join(f'`{name}`' for name in LIKELIHOODS)}.", "", *listed])


if __name__ == "__main__":
    print(markdown(table()))
