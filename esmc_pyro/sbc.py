"""Simulation-based calibration: is an algorithm's posterior as wide as it should be?

Parameters and labels are drawn from the model's own prior, the algorithm is run on the labels, and the true value of a
quantity is ranked among posterior draws of it. If the draws are from the posterior, the rank of the truth among ``L``
of them is uniform on ``0 .. L``, whatever the data (Talts et al. 2018). A posterior that is too narrow puts the truth
outside of its draws too often: the histogram of ranks is a U. One that is too wide gives a hill.

Only what is identified is ranked: the latent ``c`` is defined up to a rotation (``alignment``), ``z`` is not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyro
import torch
from pyro import poutine
from pyro.poutine.util import prune_subsample_sites
from scipy import stats
from torch import Tensor
from tqdm.auto import tqdm

from esmc_pyro.inference.checkpoint import Checkpoint, Section
from esmc_pyro.inference.svi_state import describe
from esmc_pyro.models import ESMC, Experts
from esmc_pyro.posterior import Posterior
from esmc_pyro.randomness import seeded
from esmc_pyro.tensor_file import fingerprint
from esmc_pyro.validation import check_features, check_number

Sites = dict[str, Tensor]
Quantity = Callable[[Sites], Tensor]
Fit = Callable[..., Posterior]
COLUMNS = ("rank", "truth", "mean", "sd")


def default_quantities(rows: int, labels: int) -> dict[str, Quantity]:
    """``z`` of the first and the last instance (of the first and the last label), and what sums over instances.

    ``z[n, k]`` has the rank of ``suitability[n, k]``, which grows with it. Sums see what single entries do not: a guide
    whose entries are each as wide as they should be, but independent, has sums that are too narrow.
    """

    def entry(n: int, k: int) -> Quantity:
        return lambda sites: sites["z"][:, n, k]

    def mean(k: int) -> Quantity:
        return lambda sites: sites["z"][:, :, k].mean(1)

    places = dict.fromkeys([(0, 0), (rows - 1, labels - 1)])
    ends = dict.fromkeys([0, labels - 1])
    return {
        **{f"z[{n}, {k}]": entry(n, k) for n, k in places},
        **{f"mean z of label {k}": mean(k) for k in ends},
        "|z|": lambda sites: sites["z"].square().sum((1, 2)).sqrt(),
        "mean suitability": lambda sites: sites["suitability"].mean((1, 2)),
        "log-likelihood": lambda sites: sites["log_likelihood"].sum((1, 2)),
    }


def label_quantities(rows: int) -> dict[str, Quantity]:
    """The like for each label by itself, K numbers a draw: as many simulations at once.

    For models with one layer, whose labels have nothing in common but ``X``: a fit of 100 labels costs little more than
    one of two, and is worth 50 of them.
    """

    def entry(n: int) -> Quantity:
        return lambda sites: sites["z"][:, n]

    return {
        **{f"z[{n}]": entry(n) for n in dict.fromkeys([0, rows - 1])},
        "mean z": lambda sites: sites["z"].mean(1),
        "|z|": lambda sites: sites["z"].square().sum(1).sqrt(),
        "mean suitability": lambda sites: sites["suitability"].mean(1),
        "log-likelihood": lambda sites: sites["log_likelihood"].sum(1),
    }


@dataclass(frozen=True)
class SBC:
    """Ranks of true values among ``draws`` posterior draws, one row for each simulation and quantity.

    ``table`` has the columns ``simulation``, ``quantity``, ``rank`` (0 .. draws), ``truth``, and the ``mean`` and
    ``sd`` of the posterior draws. ``interrupted`` says that the user stopped before all simulations were done.
    """

    table: pd.DataFrame
    draws: int
    interrupted: bool = False

    @property
    def quantities(self) -> list[str]:
        """The names of what was ranked."""
        return list(self.table["quantity"].unique())

    @property
    def ranks(self) -> pd.DataFrame:
        """Ranks, simulations x quantities."""
        return self.table.pivot(index="simulation", columns="quantity", values="rank")[self.quantities]

    def histogram(
        self, quantity: str, bins: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """How many ranks fall into each bin, and how many should: two arrays. ``bins`` as in ``p_values``."""
        ranks = self.table.loc[self.table["quantity"] == quantity, "rank"].to_numpy()
        edges = np.array([part[0] for part in np.array_split(np.arange(self.draws + 1), self._bins(bins))])
        sizes = np.diff([*edges, self.draws + 1])
        counts = np.bincount(np.searchsorted(edges, ranks, side="right") - 1, minlength=len(edges))
        return counts, len(ranks) * sizes / (self.draws + 1)

    def _bins(self, bins: int | None) -> int:
        """At most 10, and at least 5 expected ranks in each."""
        if bins is None:
            bins = max(2, min(10, self.table["simulation"].nunique() // 5))
        check_number(bins, "bins", low=2, whole=True)
        return min(bins, self.draws + 1)

    def p_values(self, bins: int | None = None) -> pd.Series:
        """The p-value of the chi-square test that ranks are uniform, for each quantity.

        ``bins`` of (almost) equal numbers of ranks; None is 10, or fewer where that would leave less than 5 expected
        ranks in a bin.
        """
        found = {q: stats.chisquare(*self.histogram(q, bins)).pvalue for q in self.quantities}
        return pd.Series(found, name="p_value", dtype=float)

    @property
    def p_value(self) -> float:
        """One p-value for all quantities: the smallest, times their number (Bonferroni), at most 1."""
        return float(min(1.0, self.p_values().min() * len(self.quantities)))

    def spread(self) -> pd.DataFrame:
        """``sqrt(mean posterior variance / mean squared error of the posterior mean)`` and its standard error.

        Under the posterior itself both means are the same, so the factor is 1; a posterior of half the width it should
        have gives 0.5. The mean of ``L`` draws adds ``1 / L`` of the variance to the squared error, which is taken
        into account. The error comes from the spread between simulations, by linearisation.
        """
        lines = {}
        for quantity, group in self.table.groupby("quantity", sort=False):
            claimed = group["sd"].to_numpy() ** 2 * (1 + 1 / self.draws)
            found = (group["truth"] - group["mean"]).to_numpy() ** 2
            factor = np.sqrt(claimed.mean() / found.mean())
            deviation = claimed / claimed.mean() - found / found.mean()
            error = factor * 0.5 * deviation.std(ddof=1) / np.sqrt(len(group)) if len(group) > 1 else np.nan
            lines[quantity] = {"spread": factor, "spread_error": error}
        return pd.DataFrame.from_dict(lines, orient="index")

    def summary(self) -> pd.DataFrame:
        """A line for each quantity: ``p_value``, ``spread`` and ``spread_error``."""
        return pd.concat([self.p_values(), self.spread()], axis=1).rename_axis("quantity")


def simulation_based_calibration(
    model: ESMC,
    X: Any,
    fit: Fit,
    *,
    labelled: int | None = None,
    simulations: int = 100,
    draws: int = 99,
    quantities: Mapping[str, Quantity] | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: Checkpoint | Section | None = None,
) -> SBC:
    """Rank the truth among posterior draws in ``simulations`` data sets drawn from ``model``; returns an ``SBC``.

    ``X``            features, (N + I) x F; the first ``labelled`` rows get labels (None: all of them)
    ``fit``          the algorithm, called ``fit(model, X, Y, X_unlabeled)``, which gives a ``Posterior``:
                     ``functools.partial(fit_svi, guide=..., progress=False)`` and the like. It gets a copy of the model
                     and must leave it as it is: what it would learn, or move to where the labels are
                     (``start="labels"`` of a guide does that to later layers), is no longer what was drawn from
    ``draws``        posterior draws of each fit; 99 make 100 possible ranks
    ``quantities``   name -> function of the draws by site name, each draws x ... (``z`` and ``suitability`` are
                     draws x rows x K, ``log_likelihood`` draws x labelled x K), that gives a number a draw; or R
                     numbers a draw, draws x R, of R independent parts of the data that each count as a simulation
                     (``label_quantities``). None is ``default_quantities``

    Each simulation has random numbers of its own, so more of them extend what fewer gave. Ctrl-C ends the work and
    returns what is done. With a ``checkpoint`` finished simulations are kept in a file, and the same call goes on.
    """
    check_number(simulations, "simulations", low=1, whole=True)
    check_number(draws, "draws", low=2, whole=True)
    pseudo = model.layers[0].pseudo_instances
    X = check_features(X, columns=pseudo.shape[1]).to(pseudo.dtype)
    N = len(X) if labelled is None else labelled
    check_number(N, "labelled", low=1, whole=True)
    if len(X) < N:
        raise ValueError(f"labelled must be at most the {len(X)} rows of X; got {labelled}")
    if isinstance(model.likelihood, Experts):
        raise ValueError(
            "model must have a likelihood that draws the labels it is fitted to; got Experts, whose y may be a "
            "fraction in the prior predictive (use EEOE, the experts renormalised over 0 and 1)"
        )
    chosen = dict(default_quantities(len(X), model.labels) if quantities is None else quantities)
    run = _Run(model, X, N, fit, draws, chosen, seed)
    memory = None if checkpoint is None else _Memory(checkpoint, run, fit)
    done = [] if memory is None else memory.restore()[:simulations]
    interrupted = False
    with tqdm(total=simulations, initial=len(done), disable=not progress, desc="calibrate", unit="fit") as bar:
        try:
            while len(done) < simulations:
                done.append(run.simulation(len(done)))
                bar.update()
                if memory is not None and (memory.section.is_due or len(done) == simulations):
                    memory.save(done)
        except KeyboardInterrupt:
            if not done:
                raise
            interrupted = True
            if memory is not None:
                memory.save(done)
    return SBC(run.table(done), draws, interrupted)


class _Run:
    """What all simulations share."""

    def __init__(
        self, model: ESMC, X: Tensor, labelled: int, fit: Fit, draws: int, quantities: dict[str, Quantity], seed: int
    ) -> None:
        self.model, self.X, self.labelled, self.fit = model, X, labelled, fit
        self.draws, self.quantities, self.seed = draws, quantities, seed

    def simulation(self, number: int) -> Tensor:
        """``COLUMNS`` of each quantity in one data set: R x quantities x 4."""
        # seeds far from those a user gives to ``fit``: the same random numbers must not serve the truth and the fit
        prior_seed, posterior_seed = np.random.SeedSequence([self.seed, number]).generate_state(2).tolist()
        with seeded(prior_seed), torch.no_grad():
            trace = poutine.trace(self.model).get_trace(self.X)
        truth = {name: value.unsqueeze(0) for name, value in _drawn(trace).items()}
        Y = truth.pop("y")[0, : self.labelled]
        model = copy.deepcopy(self.model)
        rest = self.X[self.labelled :] if len(self.X) > self.labelled else None
        posterior = self.fit(model, self.X[: self.labelled], Y, rest)
        if posterior.interrupted:
            raise KeyboardInterrupt
        self._check_unchanged(posterior.model)
        with seeded(posterior_seed):
            sites = guide_draws(posterior, self.X, Y, self.draws)
            truth, sites = self._completed(truth, Y), self._completed(sites, Y)
            lines = []
            for name, quantity in self.quantities.items():
                true, drawn = (self._numbers(name, quantity, s) for s in (truth, sites))
                ties = (drawn == true).sum(0)  # a tie is broken at random
                rank = (drawn < true).sum(0) + (torch.rand(ties.shape) * (ties + 1)).floor()
                lines.append(torch.stack([rank, true[0], drawn.mean(0), drawn.std(0)], -1))
        if len({len(line) for line in lines}) > 1:
            sizes = {name: len(line) for name, line in zip(self.quantities, lines, strict=True)}
            raise ValueError(f"quantities must all give as many numbers a draw as each other; got {sizes}")
        return torch.stack(lines, 1)

    def _completed(self, sites: Sites, Y: Tensor) -> Sites:
        z = sites["z"]
        likelihood = self.model.likelihood
        log_likelihood = likelihood.log_prob(Y.expand(len(z), *Y.shape), z[:, : self.labelled])
        return sites | {"suitability": likelihood.suitability(z), "log_likelihood": log_likelihood}

    def _numbers(self, name: str, quantity: Quantity, sites: Sites) -> Tensor:
        """A quantity, draws x R."""
        value = quantity(sites)
        if value.dim() not in (1, 2) or len(value) != len(sites["z"]):
            raise ValueError(
                f"quantities must give one number a draw, or a row of them; got shape {tuple(value.shape)} of {name!r} "
                f"for {len(sites['z'])} draws"
            )
        return value.reshape(len(value), -1).double()

    def _check_unchanged(self, model: ESMC) -> None:
        before, after = self.model.state_dict(), model.state_dict()
        changed = [name for name in before if name not in after or not torch.equal(before[name], after[name])]
        if changed:
            raise ValueError(
                f"fit must leave the model as it is, because the truth was drawn from it; it changed {changed} "
                "(hold what is learned fixed; let guides begin with start='zero')"
            )

    def table(self, done: list[Tensor]) -> pd.DataFrame:
        """The simulations as the frame of ``SBC``."""
        values = torch.cat(done).numpy()
        names = list(self.quantities)
        table = pd.DataFrame(values.reshape(-1, len(COLUMNS)), columns=list(COLUMNS)).astype({"rank": int})
        table.insert(0, "quantity", np.tile(np.array(names, dtype=object), len(values)))
        table.insert(0, "simulation", np.repeat(np.arange(len(values)), len(names)))
        return table


class _Memory:
    """Finished simulations in a checkpoint."""

    def __init__(self, checkpoint: Checkpoint | Section, run: _Run, fit: Fit) -> None:
        self.section = checkpoint.section("calibration") if isinstance(checkpoint, Checkpoint) else checkpoint
        state = run.model.state_dict()
        self.origin = {
            "X": fingerprint(run.X),
            "model": {name: fingerprint(value) for name, value in state.items()},
            "likelihood": describe(run.model.likelihood),
            "fit": describe(fit),
            "labelled": run.labelled,
            "draws": run.draws,
            "quantities": list(run.quantities),
            "seed": run.seed,
        }

    def restore(self) -> list[Tensor]:
        saved = self.section.get(self.origin)
        return [] if saved is None else list(saved[1]["done"])

    def save(self, done: list[Tensor]) -> None:
        self.section.put(self.origin, {}, {"done": torch.stack(done)})


@torch.no_grad()
def guide_draws(posterior: Posterior, X: Tensor, Y: Tensor, draws: int) -> Sites:
    """Joint draws from the guide of every latent site for the rows that were fitted: draws x ... by site name.

    Unlike ``Posterior.sample``, which draws new ``z`` for any rows from the functions alone, this is what the guide
    says of the ``z`` of these very rows, whose labels it has seen.
    """
    with pyro.plate("draws", draws, dim=-3):
        trace = poutine.trace(posterior.guide).get_trace(X, Y)
    return {name: value.squeeze(1) for name, value in _drawn(trace).items()}


def _drawn(trace: poutine.Trace) -> Sites:
    """The values of the sites that were drawn, plates left out."""
    trace = prune_subsample_sites(trace)
    return {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
