"""`esmc fit`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.completion import complete_path, complete_setting
from esmc_pyro.cli.failure import INTERRUPTED, Failure, WrongUsage, say
from esmc_pyro.cli.interrupt import watch_interrupts
from esmc_pyro.cli.model import describe_members
from esmc_pyro.cli.output import Output, table
from esmc_pyro.cli.rows import bare_npz, is_file, known_entries, label_frame, read_features, with_features
from esmc_pyro.cli.settings import check_values, collect
from esmc_pyro.cli.source import DataArgument, Reading
from esmc_pyro.cli.target import ForceOption, check_target

if TYPE_CHECKING:
    from esmc_pyro import Dataset, ESMCClassifier


def fit(
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.", show_default=False)],
    reading: Reading,
    output: Output,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be repeated.", autocompletion=complete_setting),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings; --set overrules it.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Same seed, same model; overrules random_state.")
    ] = None,
    unlabeled: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Further rows, whose labels are not used.", autocompletion=complete_path),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Keep what is fitted so far in this file (MODEL.checkpoint with --resume).")
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How often the checkpoint is written.")
    ] = 30,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint, if there is one.")] = False,
    force: ForceOption = False,
) -> None:
    """Fit a model to the training rows of DATA and write it to a file.

    Settings are the arguments of ESMCClassifier. Ctrl-C ends the stage that runs (choosing settings, then
    fitting); what was fitted is still written.

    \b
    Examples:
      esmc fit corel5k --out corel5k.esmc
      esmc fit songs.csv --tag-column genres --test-fraction 0.2 --out songs.esmc
      esmc fit digits --set preset=authors_b0 --set epochs=20 --seed 1 --out digits.esmc
      esmc fit large.txt.gz --resume --out large.esmc    # the same line again after a crash
    """
    chosen = collect(config, settings or (), seed)
    reading.check(data)
    sources = (data, config, unlabeled)
    checkpoint = _check_checkpoint(out, checkpoint, resume, force, reading.files(*sources))
    # an interrupted fit wrote what it had to MODEL: going on from its checkpoint is meant to replace that
    goes_on = checkpoint is not None and resume and checkpoint.exists()
    check_target(out, force=force or goes_on, inputs=reading.files(*sources))
    check_values(chosen)

    from esmc_pyro import ESMCClassifier
    from esmc_pyro.inference.checkpoint import Checkpoint

    dataset = reading.read(data)
    if not known_entries(dataset.Y_train):
        raise Failure(f"{dataset.name} has no known label in its training rows, expected some.")
    more = None if unlabeled is None else _unlabeled_rows(unlabeled, dataset)
    classifier = ESMCClassifier(**{"verbose": output.progress, **chosen})
    output.status(f"fitting {dataset.n_train} rows, {dataset.n_features} features, {dataset.n_labels} labels")
    begun = time.perf_counter()
    if checkpoint is not None and not resume:
        checkpoint.unlink(missing_ok=True)
    kept = None if checkpoint is None else Checkpoint(checkpoint, checkpoint_every)
    X, Y = _features(dataset), label_frame(dataset.Y_train, dataset.label_names)
    with watch_interrupts() as interrupts:
        classifier.fit(X, Y, more, checkpoint=kept)
        interrupts.may_stop = False
        seconds = time.perf_counter() - begun
        if classifier.posterior_.history.empty:
            raise KeyboardInterrupt("nothing was fitted yet, so nothing was written.")
        classifier.save(out)
    interrupted = interrupts.came or bool(classifier.posterior_.interrupted)
    if checkpoint is not None and not interrupted:
        checkpoint.unlink(missing_ok=True)
    _show(output, classifier, dataset, out, seconds, interrupted)
    if interrupted:
        more = "" if checkpoint is None else ", and --resume goes on from the last checkpoint"
        say(f"esmc fit: interrupted; what was fitted so far is in {out}{more}.")
        raise typer.Exit(INTERRUPTED)


def _check_checkpoint(
    out: Path, checkpoint: Path | None, resume: bool, force: bool, inputs: Iterable[Path]
) -> Path | None:
    if checkpoint is None and not resume:
        return None
    path = out.with_name(out.name + ".checkpoint") if checkpoint is None else checkpoint
    if path.resolve() == out.resolve():
        raise WrongUsage("--checkpoint and --out are the same file, expected two.")
    if path.exists() and not path.is_dir() and not resume and not force:
        raise WrongUsage(f"--checkpoint {path} exists; say --resume to go on from it or --force to start anew.")
    check_target(path, force=True, option="--checkpoint", inputs=inputs)
    return path


def _features(dataset: Dataset) -> Any:
    """Dense features as a frame, whose names the model keeps; sparse ones as they are."""
    import pandas as pd

    X = dataset.X_train
    return X if hasattr(X, "indptr") else pd.DataFrame(X, columns=list(dataset.feature_names))


def _unlabeled_rows(source: str, dataset: Dataset) -> Any:
    """Every row of ``source``, with the features of the training rows: by name, if it is a table or both have names."""
    import pandas as pd
    from scipy import sparse

    names, of = list(dataset.feature_names), "DATA"
    if is_file(source, Reading(), "table"):  # it needs no labels
        X: Any = read_features(source, names, of)
    else:
        more = bare_npz(source, Reading(), dataset.label_names) or Reading().read(source).whole()
        X = with_features(more, names, dataset.n_features, of).X_train
    if hasattr(dataset.X_train, "indptr"):
        return sparse.csr_array(X)
    return pd.DataFrame(X.toarray() if hasattr(X, "indptr") else X, columns=names)


def _show(
    output: Output, classifier: ESMCClassifier, dataset: Dataset, out: Path, seconds: float, interrupted: bool
) -> None:
    members, tables = describe_members(classifier)
    result: dict[str, Any] = {
        "model": str(out),
        "data": dataset.name,
        "rows": dataset.n_train,
        "features": dataset.n_features,
        "labels": dataset.n_labels,
        "seconds": round(seconds, 3),
        "members": len(classifier.stack_.members),  # what follows is of the heaviest
        "epochs": len(classifier.posterior_.history),
        "elbo": float(classifier.posterior_.history["elbo"].iloc[-1]),
    }
    if output.quiet and not output.json:
        return
    output.emit({**result, **members, "interrupted": interrupted}, table(("fit", ""), result.items()), *tables)
