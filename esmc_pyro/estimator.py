"""``ESMCClassifier``: the model as a scikit-learn estimator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from pyro.contrib.gp.kernels import Kernel
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from esmc_pyro import annotate, calibration, default, model_file, online, search
from esmc_pyro.arguments import check_arguments, is_default
from esmc_pyro.feature_map import FeatureMap, candidate_kinds, is_large, is_wide
from esmc_pyro.frames import label_names, labelled_first, stack, to_features, to_labels
from esmc_pyro.guides import Guide
from esmc_pyro.inference.analytic import Setting
from esmc_pyro.inference.checkpoint import Checkpoint
from esmc_pyro.metrics import lrap, macro_auc
from esmc_pyro.models import ESMC, Bernoulli, Likelihood, make_likelihood
from esmc_pyro.named import Choice
from esmc_pyro.posterior import Posterior
from esmc_pyro.stack import Member, Stack
from esmc_pyro.validation import check_number

Array = npt.NDArray[Any]


class ESMCClassifier(ClassifierMixin, BaseEstimator):
    """Multi-label classification when labels are missing.

    ``fit`` with no options looks at the features, chooses kernel, scales and label coupling on held-out training rows,
    and fits the model of ``esmc_pyro.default``. Naming an ``inference``, ``guide`` or ``preset`` fits ``ESMC`` that way
    instead. Objects given as arguments are copied, never changed.

    Parameters
    ----------
    likelihood : a name of ``models.LIKELIHOODS`` or a ``Likelihood``; "auto" is "bernoulli", or "eeoe" or ``MPU`` where
        the default's held-out rows prefer it. What a name leaves open, such as propensities or where learned rates
        start, is taken from the labels
    B : experts of the likelihoods "experts", "eeoe" and, to start from, "eeoe_learned"; None is the paper's rule
    kernel : a name of ``models.KERNELS``, a sum of them, or a Pyro kernel (for mapped features, projected only
        if they must be); "auto" is chosen on held-out rows (RBF, the paper's, with a named inference)
    inference : "auto" (the default's own training), "svi", "analytic", or a function called as ``fit_svi`` is, such as
        ``partial(fit_svi, kl_warm_up=10, patience=5)``
    guide : for "svi": a name of ``guides.GUIDES``, a guide class, or a guide, whose model is then fitted; None is
        "doubly_stochastic"
    preset : a name of ``inference.PRESETS``, the authors' or the paper's settings, fitted by the analytic solver; or a
        function like those, or a ``Setting``
    widths : latent widths for a named inference; None is the paper's
    pseudo : number of pseudo-instances M (the default has no row twice); None is every row up to what memory allows, or
        the paper's rule with a named inference
    search : whether held-out rows choose the default's settings; False takes those that the search starts from
    features : the feature map, a kind of ``feature_map.KINDS`` or "auto" ("identity" with a preset or a guide object)
    epochs, lr : passes over the data (sweeps of the analytic solver) and learning rate of the final fit; None is the
        default of each inference
    top_k : ``predict`` gives each row its top k labels; None cuts at a threshold tuned on held-out rows
    random_state : same seed, same result
    verbose : show progress

    A fifth of at most 3000 labelled rows is held out to choose settings (of few rows the fifths in turn, of more than
    8000 rows then a fifth of 8000), and a fifth of all to calibrate and tune the threshold; then all rows are fitted.
    Fewer than 10 labelled rows are not split: settings are the usual ones, probabilities are not calibrated and the
    threshold is one half. A guide or ``Setting`` object belongs to all rows: those rows are then their own judges.
    To cross-validate with unknown entries (NaN) name the splitter, ``cv=KFold(5)``: scikit-learn's choice of one looks
    at the labels and refuses them. Its ``cross_val_predict`` takes NaN for a class of its own where it asks for
    ``predict_proba`` or ``decision_function``, and numbers the classes anew before ``fit`` sees them (1 and NaN become
    0 and 1): with unknown entries go over ``KFold(5).split(X)`` yourself.

    Attributes
    ----------
    stack_ : what was fitted: one fit or, of the default, a few with weights (``stack.py``; of many rows, two at most)
    posterior_, model_, guide_, feature_map_, settings_ : those of the heaviest member of ``stack_``
    search_ : what the held-out rows compared, with scores and weights
    calibration_ : slope and offset of the log-odds for ``predict_proba``
    suitability_calibration_ : those of ``lambda z`` for ``suitability`` and ``complete``; None: ``calibration_`` is
    threshold_, label_names_, n_labels_, n_features_in_, feature_names_in_
    """

    search_: pd.DataFrame | None
    pseudo_rows_: npt.NDArray[np.intp]
    pseudo_labels_: Any

    def __init__(
        self,
        *,
        likelihood: str | Likelihood = "auto",
        B: int | None = None,
        kernel: str | Kernel = "auto",
        inference: str | Callable[..., Posterior] = "auto",
        guide: str | Guide | type[Guide] | None = None,
        preset: str | Setting | Callable[..., Setting] | None = None,
        widths: Sequence[int] | None = None,
        pseudo: int | None = None,
        search: bool = True,
        features: str = "auto",
        epochs: int | None = None,
        lr: float | None = None,
        top_k: int | None = None,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.likelihood = likelihood
        self.B = B
        self.kernel = kernel
        self.inference = inference
        self.guide = guide
        self.preset = preset
        self.widths = widths
        self.pseudo = pseudo
        self.search = search
        self.features = features
        self.epochs = epochs
        self.lr = lr
        self.top_k = top_k
        self.random_state = random_state
        self.verbose = verbose

    # --- fitting ------------------------------------------------------------------------------------------------------

    def fit(
        self, X: Any, Y: Any, X_unlabeled: Any = None, *, checkpoint: str | PathLike[str] | Checkpoint | None = None
    ) -> Self:
        """Fit to features ``X`` (N x F) and labels ``Y`` (N x K of 0, 1, and NaN for unknown), dense, sparse or frames.

        ``X_unlabeled`` (I x F) are further instances without any labels; rows of NaN in ``Y`` mean the same. What is
        fitted so far is kept in the file ``checkpoint``, if one is named: the same call goes on from there, to the same
        result. The file stays when the fit ends.
        """
        self._check_arguments()
        if checkpoint is not None and not self._is_default():
            self._choice().check_checkpoint()
        if not isinstance(checkpoint, str | PathLike | Checkpoint | None):
            raise ValueError(f"checkpoint must be the name of a file, or a Checkpoint; got {checkpoint!r}")
        kept = checkpoint if isinstance(checkpoint, Checkpoint | None) else Checkpoint(checkpoint)
        X = to_features(self, X, reset=True)
        labels = to_labels(Y, X.shape[0])
        self._check_top_k(labels.shape[1])
        if X_unlabeled is not None:
            X = stack(X, to_features(self, X_unlabeled, reset=False, name="X_unlabeled"))
        order, labelled = labelled_first(labels, X.shape[0])
        X, y = X[order], torch.as_tensor(labels[order[:labelled]])
        likelihood = self._make_likelihood(y)
        if self._is_default():
            fixed = self._fixed()
            chosen = None if isinstance(self.likelihood, str) and self.likelihood == "auto" else likelihood
            kinds = candidate_kinds(X, self.features)
            common: dict[str, Any] = {
                "seed": self.random_state, "pseudo": self.pseudo, "project": self._projects(X, kinds[0]),
                "progress": self.verbose, "checkpoint": kept,
            }  # fmt: skip
            training: dict[str, Any] = {"epochs": self.epochs, "lr": default.LR if self.lr is None else self.lr}
            found = search.choose(
                X[:labelled], y, chosen, fixed, kinds if self.search else kinds[:1],
                candidates=None if self.search else (), **common,
            )  # fmt: skip
            found = search.judge_members(found, X[:labelled], y, chosen, **common, **training)
            fitted = default.fit_stack(X, y, found.members, chosen, **common, **training)
            fitted.lead.posterior.interrupted |= found.interrupted
            found = found.only({member.settings for member in fitted.members})  # some may have been left out
            self.search_ = found.tried
            held_z, held_y = found.z, found.Y
            rows = default.pseudo_rows(len(order), fitted.lead.posterior.model.layers[0].pseudo_count, common["seed"])
        else:
            choice = self._choice()
            plain = self.preset is not None or isinstance(self.guide, Guide)
            named = "identity" if plain and self.features == "auto" else self.features
            kind = candidate_kinds(X, named)[0]
            feature_map = FeatureMap.from_data(X, kind, self.random_state, project=self._projects(X, kind))
            x = feature_map(X)
            cut_short = False
            if not choice.is_for_all_rows:
                section = None if kept is None else kept.section("held out")
                held_z, held_y, cut_short = choice.held_out(x, y, likelihood, section)
            posterior = choice.fit(x, y, likelihood, None if kept is None else kept.section("fit"))
            posterior.interrupted |= cut_short
            if choice.is_for_all_rows:
                held_z, held_y = posterior.predict(x[:labelled]), y
            fitted, self.search_ = Stack([Member(1.0, feature_map, posterior)]), None
            rows = _places(posterior.model.layers[0].pseudo_instances, x)
        self.stack_ = fitted
        self.label_names_ = label_names(Y, y.shape[1])
        self._label_columns = Y.columns if isinstance(Y, pd.DataFrame) else None
        self.n_labels_ = y.shape[1]
        self.calibration_ = calibration.fit(self._log_odds(held_z), held_y)
        self.suitability_calibration_ = calibration.fit_suitability(self.model_.likelihood, held_z, held_y)
        self.threshold_ = calibration.best_threshold(self._calibrated(held_z), held_y)
        self._remember_pseudo_labels(rows, y, order)
        return self

    def _check_arguments(self) -> None:
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, np.number | np.bool_):  # from a grid; PyTorch and files want Python's own
                setattr(self, name, value.item())
        check_arguments(self.get_params(deep=False), type(self).__init__)

    def _check_top_k(self, labels: int | None) -> None:
        if self.top_k is not None:
            check_number(self.top_k, "top_k", low=1, whole=True)
            if labels is not None and self.top_k > labels:
                raise ValueError(f"top_k must be at most the {labels} labels; got {self.top_k}")

    def _is_default(self) -> bool:
        return is_default(self.inference, self.guide, self.preset)

    def _choice(self) -> Choice:
        return Choice(**{name: getattr(self, name) for name in Choice.__dataclass_fields__})

    def _projects(self, X: Any, kind: str) -> bool:
        """Whether features are projected: a kernel of the user's is for what came, if that fits in memory, and a guide
        of his for as many features as it knows.
        """
        model = self.guide.model if isinstance(self.guide, Guide) else None
        knows_all = isinstance(model, ESMC) and model.layers[0].pseudo_instances.shape[1] == X.shape[1]
        return is_large(X) if knows_all or isinstance(self.kernel, Kernel) else is_wide(X, kind)

    def _fixed(self) -> dict[str, Any]:
        """What the search leaves alone."""
        if isinstance(self.kernel, Kernel):  # it brings its length-scales
            return {"kernel": copy.deepcopy(self.kernel), "lengthscale": 1.0, "relevance": False}
        return {} if self.kernel == "auto" else {"kernel": self.kernel}

    def _make_likelihood(self, Y: Tensor) -> Likelihood:
        if isinstance(self.likelihood, Likelihood):
            return self.likelihood
        if self.likelihood == "auto":
            return Bernoulli()
        return make_likelihood(self.likelihood, Y, **({} if self.B is None else {"B": self.B}))

    def partial_fit(self, X: Any, Y: Any, classes: Any = None) -> Self:
        """Take in new rows without starting over (``online.take_in_stack``); the first call is ``fit``.

        The posterior so far is the prior of what comes: means move, precisions add up, and new rows become
        pseudo-instances while there is room. Settings, label coupling and frequencies, feature map, calibration and
        threshold stay; where the first rows were projected (``feature_map.is_wide``), words that they lack say nothing.
        Rows without any known label teach nothing: a batch of such leaves all as it was.
        ``classes`` is not used: the columns of ``Y`` say what the labels are. Ctrl-C keeps what is reached, or, of a
        stack of several members, leaves all as they were and is raised.
        """
        if not self._is_default():
            raise ValueError(
                "partial_fit needs the default inference; got "
                f"inference={self.inference!r}, guide={self.guide!r}, preset={self.preset!r}"
            )
        if not hasattr(self, "stack_"):
            return self.fit(X, Y)
        self._check_arguments()
        rows = self._rows(X)
        y = torch.as_tensor(to_labels(Y, rows.shape[0], self.label_names_, unknown=True))
        if torch.isnan(y).all():
            return self
        self.stack_, added = online.take_in_stack(
            self.stack_, rows, y, pseudo=self.pseudo, epochs=self.epochs, lr=default.LR if self.lr is None else self.lr,
            seed=self.random_state, progress=self.verbose,
        )  # fmt: skip
        self.pseudo_rows_ = np.concatenate([self.pseudo_rows_, np.full(len(added), -1)])
        self.pseudo_labels_ = stack(self.pseudo_labels_, np.nan_to_num(y.numpy()[added]))
        return self

    def _remember_pseudo_labels(self, rows: npt.NDArray[np.intp], Y: Tensor, order: npt.NDArray[np.intp]) -> None:
        """Which training row each pseudo-instance is, and the labels it carries; for ``explain``.

        ``rows`` says which row it is (-1: none), labelled ones first, and ``order`` the place of these in the user's
        data; unlabelled instances count on after the labelled data.
        """
        labelled = (rows >= 0) & (rows < len(Y))
        carried = np.zeros((len(rows), Y.shape[1]), dtype=np.float32)
        carried[labelled] = np.nan_to_num(Y.numpy()[rows[labelled]])
        self.pseudo_rows_ = np.where(rows >= 0, order[rows], -1)
        self.pseudo_labels_ = sparse.csr_array(carried)

    # --- what was fitted ----------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> npt.NDArray[np.intp]:
        """The values of each label, K x 2: scikit-learn would take K numbers for the classes of a single label."""
        return np.tile([0, 1], (self.n_labels_, 1))

    @property
    def posterior_(self) -> Posterior:
        """The posterior of the heaviest member."""
        return self.stack_.lead.posterior

    @property
    def feature_map_(self) -> FeatureMap:
        """The feature map of the heaviest member."""
        return self.stack_.lead.feature_map

    @property
    def settings_(self) -> default.Settings | None:
        """The settings of the heaviest member; None if it has none of the default's."""
        return self.stack_.lead.settings

    @property
    def model_(self) -> ESMC:
        """The fitted ``ESMC``."""
        return self.posterior_.model

    @property
    def guide_(self) -> Any:
        """The fitted guide."""
        return self.posterior_.guide

    # --- prediction ---------------------------------------------------------------------------------------------------

    def _rows(self, X: Any) -> Any:
        check_is_fitted(self, "stack_")
        double = any(member.feature_map.is_double for member in self.stack_.members)
        return to_features(self, X, reset=False, double=double)

    def _z(self, X: Any) -> Tensor:
        rows = self._rows(X)  # first: it says so if there is no fit yet
        return self.stack_.predict(rows)

    def _frame(self, values: Array, X: Any) -> Any:
        if self._label_columns is not None and isinstance(X, pd.DataFrame):
            return pd.DataFrame(values, index=X.index, columns=self._label_columns)
        return values

    @torch.no_grad()
    def _log_odds(self, z: Tensor) -> Tensor:
        return calibration.log_odds(self.model_.likelihood, z)

    def _calibrated(self, z: Tensor) -> Tensor:
        return calibration.apply(self.calibration_, self._log_odds(z))

    @torch.no_grad()
    def _fits(self, z: Tensor, though_zero: bool = False) -> Tensor:
        """The calibrated probability that a label fits, or that it does though it is not written."""
        if self.suitability_calibration_ is None:
            return self._calibrated(z)
        (slope, offset), likelihood = self.suitability_calibration_, self.model_.likelihood
        return (likelihood.missing if though_zero else likelihood.suitability)(slope * z + offset / likelihood.lambda_)

    def decision_function(self, X: Any) -> Any:
        """``E[z]`` of every label, the paper's plug-in: rows x K. Larger is more suitable."""
        return self._frame(self._z(X).numpy(), X)

    def _mean(self, of: Callable[[Tensor], Tensor], X: Any, draws: int) -> Any:
        """The mean of ``of(z)`` over posterior draws of ``z``."""
        check_number(draws, "draws", low=1, whole=True)
        rows = self._rows(X)
        blocks = self.stack_.z_draws(rows, draws, self.random_state)
        return self._frame(torch.cat([of(z).mean(0) for _, z in blocks]).float().numpy(), X)

    def predict_proba(self, X: Any, draws: int | None = None) -> Any:
        """``P(y = 1)`` of every label, that it is written down, calibrated on held-out training rows: rows x K.

        That of the plug-in ``E[z]``, for which the calibration is; or with ``draws``, the mean over so many posterior
        draws of ``z``, which is nearer one half where the posterior is wide.
        """
        if draws is None:
            return self._frame(self._calibrated(self._z(X)).float().numpy(), X)
        return self._mean(self._calibrated, X, draws)

    @torch.no_grad()
    def suitability(self, X: Any, draws: int | None = 30) -> Any:
        """``E[sigma(lambda z)]`` over the posterior: how likely the label fits, written down or not. Rows x K.

        It is the model's own, as in ``sample_posterior``, and too high for rare labels where the posterior is wide.
        ``draws=None`` is calibrated: ``sigma(lambda z)`` at a ``z`` near ``E[z]`` with which the likelihood explains
        best what is written down in held-out rows (``calibration.fit_suitability``). So it is ``predict_proba`` where
        the likelihood says that all that fits is written, as the usual one does; and with very many experts it is large
        for all labels.
        """
        if draws is None:
            return self._frame(self._fits(self._z(X)).float().numpy(), X)
        return self._mean(lambda z: self.model_.likelihood.suitability(z), X, draws)

    def predict(self, X: Any) -> Any:
        """Zeros and ones: labels above the tuned threshold, or the top k of each row. Rows x K."""
        self._check_top_k(getattr(self, "n_labels_", None))
        z = self._z(X)
        if self.top_k is None:
            chosen = (self._calibrated(z) >= self.threshold_).numpy().astype(int)
        else:
            chosen = np.zeros(z.shape, dtype=int)
            np.put_along_axis(chosen, np.argsort(-z.numpy(), axis=1, kind="stable")[:, : self.top_k], 1, axis=1)
        return self._frame(chosen, X)

    def score(self, X: Any, y: Any) -> float:
        """The label-ranking average precision of ``decision_function`` for labels ``y``; unknown ones are left out.

        A single label has no other to be ranked with: its score is the ROC AUC over rows (NaN if they are all alike).
        """
        scores = self._z(X).numpy()
        labels = to_labels(y, len(scores), self.label_names_)
        return float(macro_auc(labels, scores) if self.n_labels_ == 1 else lrap(labels, scores))

    def sample_posterior(
        self, X: Any, draws: int = 100, sites: Sequence[str] = ("z", "suitability", "y")
    ) -> dict[str, Array]:
        """Joint posterior-predictive draws of the sites, draws x rows x K each (``Stack.sample``)."""
        rows = self._rows(X)
        taken = self.stack_.sample(rows, draws, sites, seed=self.random_state)
        return {site: values.numpy() for site, values in taken.items()}

    # --- for annotators -----------------------------------------------------------------------------------------------

    def complete(self, X: Any, Y: Any, n: int | None = None, draws: int = 30) -> pd.DataFrame:
        """The zeros of ``Y`` that are probably missing labels, most probable first (``annotate.missing_labels``).

        Their ``probability`` is that the label fits though it is not written (``Likelihood.missing``), calibrated as
        ``suitability(X, draws=None)`` is. A likelihood that says that all that fits is written, as the usual one does,
        gives the probability that it were written instead: a lower one, in the same order. ``spread`` is what the
        probability has over posterior ``draws``, by which it may be off. ``row`` is the position in ``X``; of a frame
        with an index of its own, ``index`` is what the row is called there.
        """
        check_number(draws, "draws", low=2, whole=True)
        if n is not None:
            check_number(n, "n", low=1, whole=True)
        rows = self._rows(X)
        given = to_labels(Y, rows.shape[0], self.label_names_)
        drawn = self.stack_.z_draws(rows, draws, self.random_state)
        z, fits = self.stack_.predict(rows), partial(self._fits, though_zero=True)
        return _with_index(annotate.missing_labels(z, drawn, fits, given, self.label_names_, n), X)

    def suggest_annotations(self, X: Any, n: int = 10, draws: int = 30) -> pd.DataFrame:
        """The ``n`` rows whose labels would teach most about all rows of ``X`` (``annotate.worth_labelling``).

        ``row`` and ``index`` as in ``complete``; ``ask`` are the labels that say most.
        """
        check_number(n, "n", low=1, whole=True)
        check_number(draws, "draws", low=2, whole=True)
        rows = self._rows(X)
        drawn = self.stack_.z_draws(rows, draws, self.random_state)
        found = annotate.worth_labelling(
            drawn, self.model_.likelihood, lambda places: self.stack_.correlation(rows[places.numpy()]),
            self.label_names_, n, seed=self.random_state,
        )  # fmt: skip
        return _with_index(found, X)

    def explain(self, x: Any, n: int = 5) -> pd.DataFrame:
        """The pseudo-instances most like one instance: ``pseudo``, ``training_row``, ``similarity``, their ``labels``.

        ``training_row`` is a position in the data that ``fit`` got, -1 where a pseudo-instance is none of its rows.
        """
        check_number(n, "n", low=1, whole=True)
        row = x.to_frame().T if isinstance(x, pd.Series) else x
        rows = self._rows(row if sparse.issparse(row) or isinstance(row, pd.DataFrame) else np.atleast_2d(row))
        if rows.shape[0] != 1:
            raise ValueError(f"x must be one instance; got {rows.shape[0]} rows")
        similarity = self.stack_.similarity(rows)[0]
        values, places = (found.numpy() for found in similarity.topk(min(n, len(similarity))))
        names = np.asarray(self.label_names_, dtype=object)
        carried = [names[self.pseudo_labels_[[place]].nonzero()[1]].tolist() for place in places]
        return pd.DataFrame(
            {"pseudo": places, "training_row": self.pseudo_rows_[places], "similarity": values, "labels": carried}
        )

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the fitted estimator to one file, whole or not at all (``model_file``); names of labels as text."""
        return model_file.save(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The estimator that ``save`` wrote; ``ModelFileError`` if the file is damaged, newer, or none of ours."""
        return model_file.load(path, cls)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.single_output = False
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        return tags


def _with_index(found: pd.DataFrame, X: Any) -> pd.DataFrame:
    """``found`` with the names of its rows in ``X``, if that is a frame that does not just count them."""
    if not isinstance(X, pd.DataFrame) or X.index.equals(pd.RangeIndex(len(X))):
        return found
    found.insert(1, "index", X.index[found["row"]])
    return found


def _places(pseudo_instances: Tensor, x: Tensor) -> npt.NDArray[np.intp]:
    """Which row of ``x`` each pseudo-instance is, of equal rows one after another; -1 if none."""
    places: dict[bytes, list[int]] = {}
    for place, row in reversed([*enumerate(x.numpy())]):
        places.setdefault(row.tobytes(), []).append(place)
    equal = [places.get(row.tobytes(), [-1]) for row in pseudo_instances.detach().to(x.dtype).numpy()]
    return np.array([rows.pop() if len(rows) > 1 else rows[0] for rows in equal], dtype=np.intp)
