"""``ESMCClassifier``: the model as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Sequence
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

from esmc_pyro import annotate, calibration, default, model_file
from esmc_pyro.feature_map import FeatureMap, candidate_kinds
from esmc_pyro.frames import label_names, to_features, to_labels
from esmc_pyro.guides import Guide
from esmc_pyro.inference import PRESETS, fit_analytic, fit_svi
from esmc_pyro.metrics import lrap
from esmc_pyro.models import ESMC, Bernoulli, Likelihood, make_likelihood, rules
from esmc_pyro.objectives import MAP
from esmc_pyro.posterior import Posterior
from esmc_pyro.validation import check_choice, check_number

Array = npt.NDArray[Any]
INFERENCES = ("auto", "svi", "analytic")


class ESMCClassifier(ClassifierMixin, BaseEstimator):
    """Multi-label classification when labels are missing.

    ``fit`` with no options looks at the features, chooses kernel, scales and label coupling on held-out training rows, and
    fits the model of ``esmc_pyro.default``. Naming an ``inference``, ``guide`` or ``preset`` fits ``ESMC`` that way instead.

    Parameters
    ----------
    likelihood : a name of ``models.LIKELIHOODS`` or a ``Likelihood``; "auto" is "bernoulli"
    B : experts of the likelihoods "experts" and "eeoe"; None is the paper's rule
    kernel : a name of ``models.KERNELS``, a sum of them, or a Pyro kernel; "auto" is chosen on held-out rows (RBF, the
        paper's, with a named inference)
    inference : "auto" (the default's own training), "svi" or "analytic"
    guide : for "svi": a name of ``guides.GUIDES``, a guide class or object; None is "doubly_stochastic"
    preset : a name of ``inference.PRESETS``: the authors' or the paper's settings, fitted by the analytic solver
    widths : latent widths for a named inference; None is the paper's
    pseudo : number of pseudo-instances M; None is every row up to what memory allows, or the paper's rule with a named
        inference
    features : the feature map, a kind of ``feature_map.KINDS`` or "auto" ("identity" with a preset)
    epochs, lr : passes over the data (sweeps of the analytic solver) and learning rate; None is the default of each inference
    top_k : ``predict`` gives each row its top k labels; None cuts at a threshold tuned on held-out rows
    random_state : same seed, same result
    verbose : show progress

    Attributes
    ----------
    posterior_, model_, guide_ : what was fitted; ``settings_`` and ``search_`` what the held-out rows chose
    feature_map_, threshold_, label_names_, n_labels_, n_features_in_, feature_names_in_
    """

    def __init__(
        self,
        *,
        likelihood: str | Likelihood = "auto",
        B: int | None = None,
        kernel: str | Kernel = "auto",
        inference: str = "auto",
        guide: str | Guide | type[Guide] | None = None,
        preset: str | None = None,
        widths: Sequence[int] | None = None,
        pseudo: int | None = None,
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
        self.features = features
        self.epochs = epochs
        self.lr = lr
        self.top_k = top_k
        self.random_state = random_state
        self.verbose = verbose

    # --- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, Y: Any, X_unlabeled: Any = None) -> Self:
        """Fit to features ``X`` (N x F) and labels ``Y`` (N x K of 0, 1, and NaN for unknown), dense, sparse or frames.

        ``X_unlabeled`` (I x F) are further instances without any labels; rows of NaN in ``Y`` mean the same.
        """
        self._check_arguments()
        X = to_features(self, X, reset=True)
        Y_given, Y = Y, torch.as_tensor(to_labels(Y, X.shape[0]))
        self.label_names_ = label_names(Y_given, Y.shape[1])
        self._labels_in_frame = isinstance(Y_given, pd.DataFrame)
        self.n_labels_ = Y.shape[1]
        self.classes_ = np.arange(self.n_labels_)
        if X_unlabeled is not None:
            X_unlabeled = to_features(self, X_unlabeled, reset=False, name="X_unlabeled")
        found = self._search(X, Y) if self._is_default() else None
        self.settings_ = None if found is None else found.settings
        self.search_ = None if found is None else found.tried
        kind = "identity" if self.preset is not None and self.features == "auto" else self.features
        kind = kind if self.settings_ is None else self.settings_.features
        self.feature_map_ = FeatureMap.from_data(X, kind, seed=self.random_state)
        x = self.feature_map_(X)
        if X_unlabeled is not None:
            x = torch.cat([x, self.feature_map_(X_unlabeled)])
        if found is None:
            self.posterior_ = self._fit_named(x, Y)
            held_z, held_Y = self.posterior_.predict(x[: len(Y)]), Y
        else:
            self.posterior_ = self._fit_default(x, Y, found.settings)
            held_z, held_Y = found.z, found.Y
        self.calibration_ = calibration.fit(self._log_odds(held_z), held_Y)
        self.threshold_ = calibration.best_threshold(self._calibrated(held_z), held_Y)
        self._remember_pseudo_labels(x, Y)
        return self

    def _check_arguments(self) -> None:
        check_choice(self.inference, INFERENCES, "inference")
        if self.preset is not None:
            check_choice(self.preset, PRESETS, "preset")
            if self.inference == "svi" or self.guide is not None:
                raise ValueError(
                    f"preset is fitted by inference='analytic' and no guide; got preset={self.preset!r} with "
                    f"inference={self.inference!r}, guide={self.guide!r}"
                )
        if self.inference == "analytic" and self.guide not in (None, "paper"):
            raise ValueError(f"guide must be 'paper' for inference='analytic'; got {self.guide!r}")
        for name in ("pseudo", "epochs", "top_k", "B"):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), name, low=1, whole=True)
        if self.lr is not None:
            check_number(self.lr, "lr", low=0, above=True)
        check_number(self.random_state, "random_state", low=0, whole=True)

    def _make_likelihood(self, Y: Tensor) -> Likelihood:
        if isinstance(self.likelihood, Likelihood):
            return self.likelihood
        if self.likelihood == "auto":
            return Bernoulli()
        if self.likelihood in ("experts", "eeoe"):
            return make_likelihood(self.likelihood, B=rules.experts_from_ratio(Y) if self.B is None else self.B)
        return make_likelihood(self.likelihood)

    def _is_default(self) -> bool:
        return self.preset is None and self.inference == "auto" and self.guide is None

    def _search(self, X: Any, Y: Tensor) -> default.Search:
        fixed = {} if self.kernel == "auto" else {"kernel": self.kernel}
        kinds = candidate_kinds(X, self.features)
        return default.search(X, Y, self._make_likelihood(Y), fixed, kinds, seed=self.random_state)

    def _fit_default(self, x: Tensor, Y: Tensor, settings: default.Settings) -> Posterior:
        return default.fit_settings(
            x,
            Y,
            settings,
            self._make_likelihood(Y),
            pseudo=self.pseudo,
            epochs=self.epochs or default.EPOCHS,
            lr=self.lr or default.LR,
            seed=self.random_state,
            progress=self.verbose,
        )

    def _fit_named(self, x: Tensor, Y: Tensor) -> Posterior:
        labelled, unlabelled = x[: len(Y)], x[len(Y) :] if len(x) > len(Y) else None
        options: dict[str, Any] = {"seed": self.random_state, "progress": self.verbose}
        analytic = self.preset is not None or self.inference == "analytic"
        if self.epochs is not None:
            options["sweeps" if analytic else "epochs"] = self.epochs
        if self.preset is not None:
            setting = PRESETS[self.preset](labelled, Y, unlabelled, seed=self.random_state)
            return setting.fit(labelled, Y, unlabelled, **options)
        kernel = "rbf" if self.kernel == "auto" else self.kernel
        model = ESMC.from_data(
            x,
            Y,
            self.widths,
            likelihood=self._make_likelihood(Y),
            kernel=kernel,
            pseudo=self.pseudo,
            mean=["zero"] * (1 if self.widths is None else len(self.widths)) + ["constant"],
            variance=[1.0] * (1 if self.widths is None else len(self.widths)) + [9.0],
            seed=self.random_state,
        )
        if analytic:
            return fit_analytic(model, labelled, Y, unlabelled, **options)
        guide = "doubly_stochastic" if self.guide is None else self.guide
        if self.lr is not None:
            options["lr"] = self.lr
        objective = "collapsed" if guide == "doubly_stochastic" else "trace"
        return fit_svi(model, labelled, Y, unlabelled, guide=guide, objective=objective, **options)

    def partial_fit(self, X: Any, Y: Any) -> Self:
        """Take in new rows without starting over: the posterior so far is the prior of what comes.

        The functions move from where they are; pseudo-instances, settings and feature map stay. The first call is ``fit``.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, Y)
        if self.settings_ is None:
            raise ValueError("partial_fit needs the default inference (inference='auto' without guide or preset)")
        x = self.feature_map_(to_features(self, X, reset=False))
        y = torch.as_tensor(to_labels(Y, len(x), columns=self.n_labels_))
        guide = self.guide_
        prior = [
            (guide.v_loc(layer).detach().clone(), getattr(guide, f"{layer.site}_v_scale").detach().clone())
            for layer in self.model_.layers
        ]
        posterior = fit_svi(
            self.model_, x, y, guide=guide, objective=MAP(prior), epochs=self.epochs or default.EPOCHS, lr=0.02,
            batch_size=min(256, len(x)), seed=self.random_state, progress=self.verbose,
        )  # fmt: skip
        self.posterior_ = posterior
        return self

    def _remember_pseudo_labels(self, x: Tensor, Y: Tensor) -> None:
        """Which training row each pseudo-instance is (-1 if none), and the labels it carries; for ``explain``."""
        places = {row.tobytes(): place for place, row in enumerate(x.numpy())}
        pseudo = self.model_.layers[0].pseudo_instances.detach().to(x.dtype).numpy()
        self.pseudo_rows_ = np.array([places.get(row.tobytes(), -1) for row in pseudo])
        labelled = (self.pseudo_rows_ >= 0) & (self.pseudo_rows_ < len(Y))
        carried = np.zeros((len(pseudo), Y.shape[1]), dtype=np.float32)
        carried[labelled] = np.nan_to_num(Y.numpy()[self.pseudo_rows_[labelled]])
        self.pseudo_labels_ = sparse.csr_array(carried)

    # --- what was fitted ----------------------------------------------------------------------------------------------

    @property
    def model_(self) -> ESMC:
        """The fitted ``ESMC``."""
        return self.posterior_.model

    @property
    def guide_(self) -> Any:
        """The fitted guide."""
        return self.posterior_.guide

    # --- prediction ---------------------------------------------------------------------------------------------------

    def _mapped(self, X: Any) -> Tensor:
        check_is_fitted(self, "posterior_")
        return self.feature_map_(to_features(self, X, reset=False))

    def _frame(self, values: Array, X: Any) -> Any:
        if self._labels_in_frame and isinstance(X, pd.DataFrame):
            return pd.DataFrame(values, index=X.index, columns=list(self.label_names_))
        return values

    def _log_odds(self, z: Tensor) -> Tensor:
        return torch.logit(self.model_.likelihood.prob(z).double(), eps=1e-9)

    def _calibrated(self, z: Tensor) -> Tensor:
        return calibration.apply(self.calibration_, self._log_odds(z))

    def decision_function(self, X: Any) -> Any:
        """``E[z]`` of every label, the paper's plug-in: rows x K. Larger is more suitable."""
        return self._frame(self.posterior_.predict(self._mapped(X)).numpy(), X)

    def predict_proba(self, X: Any) -> Any:
        """``P(y = 1)`` of every label, calibrated on held-out training rows: rows x K."""
        z = self.posterior_.predict(self._mapped(X))
        return self._frame(self._calibrated(z).float().numpy(), X)

    def suitability(self, X: Any, draws: int = 30) -> Any:
        """``E[sigma(lambda z)]`` over the posterior: how likely the label fits, written down or not. Rows x K."""
        x = self._mapped(X)
        likelihood = self.model_.likelihood
        blocks = annotate.z_draws(self.posterior_, x, draws, self.random_state)
        return self._frame(torch.cat([likelihood.suitability(z).mean(0) for _, z in blocks]).numpy(), X)

    def predict(self, X: Any) -> Any:
        """Zeros and ones: labels above the tuned threshold, or the top k of each row. Rows x K."""
        p = np.asarray(self.predict_proba(X))
        if self.top_k is None:
            chosen = (p >= self.threshold_).astype(int)
        else:
            chosen = np.zeros(p.shape, dtype=int)
            np.put_along_axis(chosen, np.argsort(-p, axis=1, kind="stable")[:, : self.top_k], 1, axis=1)
        return self._frame(chosen, X)

    def score(self, X: Any, Y: Any, sample_weight: None = None) -> float:
        """The label-ranking average precision of ``decision_function``; unknown entries are left out."""
        scores = np.asarray(self.decision_function(X))
        return float(lrap(to_labels(Y, len(scores), columns=self.n_labels_), scores))

    def sample_posterior(
        self, X: Any, draws: int = 100, sites: Sequence[str] = ("z", "suitability", "y")
    ) -> dict[str, Array]:
        """Joint posterior-predictive draws of the sites, draws x rows x K each (``Posterior.sample``)."""
        taken = self.posterior_.sample(self._mapped(X), draws, sites, seed=self.random_state)
        return {site: values.numpy() for site, values in taken.items()}

    # --- for annotators -----------------------------------------------------------------------------------------------

    def complete(self, X: Any, Y: Any, n: int | None = None, draws: int = 30) -> pd.DataFrame:
        """The zeros of ``Y`` that are probably missing labels, most probable first (``annotate.missing_labels``)."""
        x = self._mapped(X)
        given = to_labels(Y, len(x), columns=self.n_labels_)
        return annotate.missing_labels(self.posterior_, x, given, self.label_names_, n, draws, self.random_state)

    def suggest_annotations(self, X: Any, n: int = 10, draws: int = 30) -> pd.DataFrame:
        """The ``n`` rows whose labels would teach the model most (``annotate.worth_labelling``)."""
        check_number(n, "n", low=1, whole=True)
        return annotate.worth_labelling(
            self.posterior_, self._mapped(X), self.label_names_, n, draws, self.random_state
        )

    def explain(self, x: Any, n: int = 5) -> pd.DataFrame:
        """The pseudo-instances most like one instance: ``pseudo``, ``training_row``, ``similarity`` and their ``labels``."""
        row = x.to_frame().T if isinstance(x, pd.Series) else x if sparse.issparse(x) else np.atleast_2d(x)
        mapped = self._mapped(row)
        if len(mapped) != 1:
            raise ValueError(f"x must be one instance; got {len(mapped)} rows")
        places, values = (found[0].numpy() for found in annotate.nearest_pseudo_instances(self.posterior_, mapped, n))
        names = np.asarray(self.label_names_, dtype=object)
        carried = [names[self.pseudo_labels_[[place]].nonzero()[1]].tolist() for place in places]
        return pd.DataFrame(
            {"pseudo": places, "training_row": self.pseudo_rows_[places], "similarity": values, "labels": carried}
        )

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the fitted estimator to one file, whole or not at all (``model_file``)."""
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
