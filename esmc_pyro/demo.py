"""The main job, ``make demo``: half of the training labels removed, ESMC beside plain methods, a table and a page.

Pictures of several digits with 78 labels (``data.digits``). Half of the ones of the training labels become zeros, as if
nobody had written them down; every method sees those labels only, chooses its settings by them, and is judged by the
full labels of other pictures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from esmc_pyro import figures
from esmc_pyro.data import make_digit_pictures, remove_ones
from esmc_pyro.figures import Suggestion
from esmc_pyro.files import write_atomic
from esmc_pyro.inference import fit_svi
from esmc_pyro.metrics import bootstrap_intervals, evaluate, paper_auc
from esmc_pyro.models import EEOE, ESMC
from esmc_pyro.models.rules import experts_from_ratio
from esmc_pyro.page import Metric, both_themes, render_page
from esmc_pyro.posterior import Posterior

Array = npt.NDArray[Any]
Method = Callable[..., Array]  # (X, Y, X_new, setting) -> scores of the rows of X_new, larger = more likely

NEIGHBOURS = (5, 10, 20, 40, 80, 160)
PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


METRICS = (
    Metric("auc", "AUC", "area under the pooled ranking curve"),
    Metric("coverage", "Coverage", "how far down the list the last true label stands; smaller is better", 1, True),
    Metric("p@1", "P@1", "share of first suggestions that are true"),
    Metric("p@3", "P@3", "share of the first three that are true"),
    Metric("ndcg@3", "nDCG@3", "the first three, the first counting most"),
    Metric("macro_auc", "Macro AUC", "mean over labels of the label’s own AUC, so rare labels count in full"),
)


class Task(NamedTuple):
    """Features (rows x F) and labels (rows x K); ``given`` is what is left of the training labels ``Y``."""

    X: Array
    Y: Array
    given: Array
    X_test: Array
    Y_test: Array
    label_names: list[str]
    picture_shape: tuple[int, int]


def make_task(train: int, test: int, seed: int = 0) -> Task:
    """Training and test pictures that share no handwritten digit, and half of the training ones removed."""
    seen = make_digit_pictures(train, 2 * seed, part="train")
    new = make_digit_pictures(test, 2 * seed + 1, part="test")
    given = remove_ones(seen.Y, 0.5, seed)
    return Task(seen.X, seen.Y, given, new.X, new.Y, seen.label_names, seen.picture_shape)


class Score(NamedTuple):
    """A method's row of the table."""

    method: str
    setting: str
    seconds: float
    values: Mapping[str, float]


class Example(NamedTuple):
    """A picture with its labels. ``given`` is None for a test picture, whose labels no method saw."""

    title: str
    pixels: Array
    true: list[str]
    given: list[str] | None
    suggested: list[Suggestion]

    @property
    def shows(self) -> str:
        """What is to be seen, in words: "0 at top left, 3 at bottom right"."""
        return ", ".join(label for label in self.true if " at " in label)


# --- the methods ------------------------------------------------------------------------------------------------------


def fit_esmc(
    X: Array, Y: Array, *, pseudo: int = 500, epochs: int = 40, seed: int = 0, progress: bool = True
) -> Posterior:
    """Two layers with K / 2 latent dimensions, the paper's likelihood with its rule for B, fitted by SVI.

    Widths, variance and epochs were chosen on held-out training rows by their given labels. Pixels are all on the same
    scale, and standardising them only made the noise of empty ones louder, so they stay as they are.
    """
    x, y = torch.as_tensor(X), torch.as_tensor(Y)
    model = ESMC.from_data(
        x,
        y,
        [max(1, y.shape[1] // 2)],
        likelihood=EEOE(experts_from_ratio(y)),
        variance=[1.0, 25.0],
        mean=["zero", "constant"],
        pseudo=min(pseudo, len(x)),
        seed=seed,
    )
    return fit_svi(
        model,
        x,
        y,
        guide="doubly_stochastic",
        objective="collapsed",
        epochs=epochs,
        lr=0.01,
        seed=seed,
        progress=progress,
    )


def label_frequency(X: Array, Y: Array, X_new: Array) -> Array:
    """Every picture gets the same list: the most frequent labels first."""
    return np.tile(Y.mean(axis=0), (len(X_new), 1))


def nearest_neighbours(X: Array, Y: Array, X_new: Array, k: int) -> Array:
    """The mean labels of the k nearest training pictures, the nearer ones counting more."""
    k = min(k, len(X))
    return np.asarray(KNeighborsRegressor(k, weights="distance").fit(X, Y).predict(X_new))


def logistic_regression(X: Array, Y: Array, X_new: Array, C: float) -> Array:
    """A logistic regression for each label; ``C`` is scikit-learn's inverse strength of the penalty."""
    scores = np.empty((len(X_new), Y.shape[1]))
    for label, y in enumerate(Y.T):
        ones = y.sum()
        if 0 < ones < len(y):
            scores[:, label] = LogisticRegression(C=C, max_iter=2000).fit(X, y).decision_function(X_new)
        else:  # nothing to learn from: the log-odds of the label's frequency, half a picture added on either side
            scores[:, label] = np.log((ones + 0.5) / (len(y) - ones + 0.5))
    return scores


def choose_setting(method: Method, settings: Sequence[float], X: Array, Y: Array, seed: int = 0) -> float:
    """The setting with the best AUC on a quarter of the training rows after a fit to the others; given labels only."""
    order = np.random.default_rng(seed).permutation(len(X))
    held, rest = order[: len(X) // 4], order[len(X) // 4 :]
    return max(settings, key=lambda setting: paper_auc(Y[held], method(X[rest], Y[rest], X[held], setting)))


# --- the comparison ---------------------------------------------------------------------------------------------------


def compare(task: Task, posterior: Posterior, esmc_seconds: float, seed: int = 0) -> list[Score]:
    """ESMC, fitted in ``esmc_seconds``, and the plain methods on the full labels of the test pictures; best AUC first.

    Seconds are those of choosing a setting, fitting and predicting.
    """
    X, Y, X_test = task.X, task.given, task.X_test
    scores = []

    def add(method: str, predict: Callable[[], tuple[str, Array]], before: float = 0.0) -> None:
        begun = time.perf_counter()
        setting, values = predict()
        seconds = before + time.perf_counter() - begun
        scores.append(Score(method, setting, seconds, evaluate(task.Y_test, values, ks=(1, 3))))

    def neighbours() -> tuple[str, Array]:
        k = int(choose_setting(nearest_neighbours, NEIGHBOURS, X, Y, seed))
        return f"k = {k}", nearest_neighbours(X, Y, X_test, k)

    def regression() -> tuple[str, Array]:
        C = choose_setting(logistic_regression, PENALTIES, X, Y, seed)
        return f"C = {C:g}", logistic_regression(X, Y, X_test, C)

    layer, likelihood = posterior.model.layers[0], posterior.model.likelihood
    setting = f"L = {layer.outputs}, M = {layer.pseudo_count}, B = {likelihood.B}"
    add("ESMC", lambda: (setting, posterior.predict(X_test).numpy()), esmc_seconds)
    add("label frequency", lambda: ("", label_frequency(X, Y, X_test)))
    add("nearest neighbours", neighbours)
    add("logistic regression", regression)
    return sorted(scores, key=lambda score: -score.values["auc"])


def best_values(scores: Sequence[Score]) -> dict[str, str]:
    """The best entry of each column as it is written, so that entries that look equal are marked alike."""
    best = {}
    for metric in METRICS:
        values = [score.values[metric.key] for score in scores]
        best[metric.key] = metric.write(min(values) if metric.smaller_is_better else max(values))
    return best


def results_table(scores: Sequence[Score]) -> Table:
    """The comparison for a terminal; the best of each column is bold."""
    # 80 characters wide, so that it fits a plain terminal
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for metric in METRICS:
        table.add_column(metric.title + (" ↓" if metric.smaller_is_better else ""), justify="right", no_wrap=True)
    table.add_column("sec", justify="right", no_wrap=True)
    best = best_values(scores)
    for score in scores:
        cells = [metric.write(score.values[metric.key]) for metric in METRICS]
        marked = [f"[bold]{c}[/]" if c == best[m.key] else c for m, c in zip(METRICS, cells, strict=True)]
        table.add_row(score.method, *marked, f"{score.seconds:.1f}")
    return table


# --- examples ---------------------------------------------------------------------------------------------------------


def _names(row: Array, names: Sequence[str]) -> list[str]:
    return [names[i] for i in np.flatnonzero(row).tolist()]


def training_examples(task: Task, posterior: Posterior, count: int = 6) -> list[Example]:
    """The first training pictures; ESMC adds to the given labels as many as were removed."""
    suitability = np.where(task.given[:count] == 1, -np.inf, _suitability(posterior, task.X[:count]))
    return [
        Example(
            f"Training picture {row + 1}",
            task.X[row].reshape(task.picture_shape),
            _names(task.Y[row], task.label_names),
            _names(task.given[row], task.label_names),
            _suggest(suitability[row], task.Y[row], task.label_names, int((task.Y[row] - task.given[row]).sum())),
        )
        for row in range(len(suitability))
    ]


def unseen_examples(task: Task, posterior: Posterior, count: int = 3) -> list[Example]:
    """The first test pictures; ESMC suggests as many labels as are true."""
    suitability = _suitability(posterior, task.X_test[:count])
    return [
        Example(
            f"Test picture {row + 1}",
            task.X_test[row].reshape(task.picture_shape),
            _names(task.Y_test[row], task.label_names),
            None,
            _suggest(suitability[row], task.Y_test[row], task.label_names, int(task.Y_test[row].sum())),
        )
        for row in range(len(suitability))
    ]


def _suitability(posterior: Posterior, X: Array) -> Array:
    return posterior.model.likelihood.suitability(posterior.predict(X)).numpy()


def _suggest(suitability: Array, true: Array, names: Sequence[str], top: int) -> list[Suggestion]:
    order = np.argsort(-suitability, kind="stable")[:top]
    return [Suggestion(names[i], float(suitability[i]), bool(true[i])) for i in order.tolist()]


def recovered(task: Task, posterior: Posterior, top: int = 1) -> float:
    """Of the ``top`` labels that ESMC would add to each training picture, the share that had been removed from it."""
    open_labels = np.where(task.given == 1, -np.inf, posterior.predict(task.X).numpy())
    order = np.argsort(-open_labels, axis=1)[:, :top]
    return float(np.take_along_axis(task.Y - task.given, order, axis=1).mean())


# --- the page ---------------------------------------------------------------------------------------------------------


def make_page(
    task: Task, posterior: Posterior, scores: Sequence[Score], examples: Sequence[Example], begun: float
) -> str:
    """The page as text; ``begun`` is when the job started, by ``time.perf_counter``."""
    errors = bootstrap_intervals(task.Y_test, posterior.predict(task.X_test).numpy(), ks=(1,))["standard_error"]
    return render_page(
        "demo.html",
        labels=task.Y.shape[1],
        train=len(task.X),
        test=len(task.X_test),
        ones=int(task.Y.sum()),
        removed=int((task.Y - task.given).sum()),
        metrics=METRICS,
        scores=scores,
        best=best_values(scores),
        errors=errors,
        first=recovered(task, posterior),
        chance=float((task.Y - task.given).sum() / (1 - task.given).sum()),
        history=posterior.history,
        interrupted=posterior.interrupted,
        elbo=both_themes(figures.elbo_curve, posterior.history),
        likelihood=both_themes(figures.label_probability),
        training=[example for example in examples if example.given is not None],
        unseen=[example for example in examples if example.given is None],
        embed=lambda pixels: figures.embed(figures.picture(pixels), "png"),
        seconds=time.perf_counter() - begun,
    )


# --- the job ----------------------------------------------------------------------------------------------------------


def run(
    out: Path,
    *,
    train: int = 2000,
    test: int = 1000,
    pseudo: int = 500,
    epochs: int = 40,
    seed: int = 0,
    console: Console | None = None,
) -> list[Score]:
    """The whole job; writes ``index.html`` and ``suggestions.png`` into ``out`` and returns the rows of the table."""
    console = Console() if console is None else console
    begun = time.perf_counter()
    task = make_task(train, test, seed)
    console.print(
        f"{train} training and {test} test pictures, {task.Y.shape[1]} labels; "
        f"{int((task.Y - task.given).sum())} of the {int(task.Y.sum())} training ones removed"
    )
    fit_begun = time.perf_counter()
    posterior = fit_esmc(task.X, task.given, pseudo=pseudo, epochs=epochs, seed=seed, progress=console.is_terminal)
    if posterior.history.empty:
        raise KeyboardInterrupt("stopped before the first epoch had ended: there is nothing to report")
    scores = compare(task, posterior, time.perf_counter() - fit_begun, seed)
    console.print(results_table(scores))

    training, unseen = training_examples(task, posterior), unseen_examples(task, posterior)
    shown = training[:4]
    sheet = figures.suggestions(
        [example.pixels for example in shown],
        [example.given or [] for example in shown],
        [example.suggested for example in shown],
    )
    write_atomic(out / "suggestions.png", figures.render(sheet, "png", dpi=150))
    path = write_atomic(out / "index.html", make_page(task, posterior, scores, [*training, *unseen], begun))
    console.print(f"{path} written; {time.perf_counter() - begun:.0f} seconds in all")
    return scores


def main(
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("report"),
    train: Annotated[int, typer.Option(min=20, help="Training pictures.")] = 2000,
    test: Annotated[int, typer.Option(min=10, help="Test pictures.")] = 1000,
    pseudo: Annotated[int, typer.Option(min=1, help="M, the pseudo-instances of each layer.")] = 500,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training pictures.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
) -> None:
    """Fit ESMC to pictures with half of their labels removed, beside plain methods; print a table, write a page."""
    # The matrices are small: more threads mostly wait for each other, for minutes if the machine is busy. And sums in a
    # fixed order give the same table whatever the number of cores.
    torch.set_num_threads(1)
    with threadpool_limits(1):
        run(out, train=train, test=test, pseudo=pseudo, epochs=epochs, seed=seed)


if __name__ == "__main__":
    typer.run(main)
