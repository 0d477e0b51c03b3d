"""The model: sparse Gaussian-process layers from features to suitability, and a likelihood on top."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyro
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.nn import PyroModule
from torch import Tensor

from esmc_pyro.models import rules
from esmc_pyro.models.kernels import make_kernel
from esmc_pyro.models.layer import Layer
from esmc_pyro.models.likelihoods import Likelihood, make_likelihood

# Parameters belong to their module and to nobody else: two models never meet in a global store.
pyro.settings.set(module_local_params=True)


def layer_names(depth: int) -> list[str]:
    """``["c", "z"]`` for two layers, ``["z"]`` for one, ``["c1", "c2", "z"]`` for three, and so on."""
    return ["z"] if depth == 1 else ["c", "z"] if depth == 2 else [f"c{i + 1}" for i in range(depth - 1)] + ["z"]


def observed(Y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and known-mask of these rows (n x K each). Rows beyond the end of ``Y`` are unlabelled; NaN is unknown.

    Unknown entries come back as zeros: a NaN under a mask would still poison gradients.
    """
    labelled = (rows < len(Y)).unsqueeze(-1)
    y = Y[rows.clamp(max=len(Y) - 1)]
    known = labelled & ~torch.isnan(y)
    return torch.where(known, y, y.new_zeros(())), known


class ESMC(PyroModule):
    """``x -> c -> z -> y``, site by site; see ``Layer`` and ``likelihoods`` for the distributions.

    Every layer adds ``f_c``, ``u_c`` (outputs x M), ``c_hat`` and ``c`` (instances x outputs); the last one is called ``z``
    and has an output for each of the K labels. Model and guides share one signature::

        model(X, Y, rows)    X  (N + I) x F    features of labelled and unlabelled instances
                             Y  N x K          1, 0, or NaN where unknown; rows of X beyond Y are unlabelled;
                                               None draws y instead of observing it
                             rows              which rows to look at (a minibatch); None is all of them
    """

    def __init__(self, layers: Sequence[Layer], likelihood: Likelihood) -> None:
        super().__init__("esmc")
        if not layers or [layer.site for layer in layers] != layer_names(len(layers)):
            raise ValueError(
                f"layers must be named {layer_names(max(1, len(layers)))}; got {[layer.site for layer in layers]}"
            )
        self.layers = PyroModule[torch.nn.ModuleList](layers)
        self.likelihood = likelihood

    @classmethod
    def from_data(
        cls,
        X: Tensor,
        Y: Tensor,
        widths: Sequence[int] | None = None,
        *,
        likelihood: str | Likelihood = "experts",
        kernel: str | Kernel | Sequence[str | Kernel] = "rbf",
        pseudo: int | None = None,
        pseudo_method: str = "random",
        alpha: float = 0.1,
        beta: float = 0.1,
        gamma: float = 0.1,
        fitc: bool = False,
        learn: Iterable[str] = (),
        seed: int = 0,
    ) -> ESMC:
        """A model sized by the paper's rules where no size is given.

        ``widths`` are the latent widths: ``[L]`` is the paper's model, ``[]`` one sparse GP from features to labels, longer
        lists are deeper; None is ``[ceil(K / 4)]``. Pseudo-instances of a latent layer start at the label scores of
        the same rows (``rules.label_scores``), which a guide moves to ``E f_c(S_c)``. ``likelihood="experts"`` takes ``B``
        from the ratio of zeros to ones. ``kernel`` is one for all layers, or one a layer.
        """
        K = Y.shape[1]
        widths = [-(-K // 4)] if widths is None else list(widths)
        if any(w < 1 or int(w) != w for w in widths):
            raise ValueError(f"widths must be whole numbers of latent dimensions, at least 1 each; got {widths}")
        names = layer_names(len(widths) + 1)
        kernels = [kernel] * len(names) if isinstance(kernel, str | Kernel) else list(kernel)
        if len(kernels) != len(names):
            raise ValueError(f"kernel must be one for all layers or one for each of {names}; got {len(kernels)}")
        M = rules.pseudo_count(len(X)) if pseudo is None else pseudo
        if M < 1:
            raise ValueError(f"pseudo must be a number of pseudo-instances, at least 1; got {pseudo!r}")
        inputs = X
        layers = []
        for depth, (name, outputs) in enumerate(zip(names, [*widths, K], strict=True)):
            if depth == 0:
                pseudo_instances = rules.choose_pseudo_instances(X, M, pseudo_method, seed)
            else:
                inputs = rules.label_scores(Y, widths[depth - 1])
                pseudo_instances = inputs[rules.choose_pseudo_rows(len(inputs), M, seed)]
            scale = rules.lengthscale_from_distances(inputs, seed=seed)
            layers.append(
                Layer(
                    name,
                    make_kernel(kernels[depth], inputs.shape[1], lengthscale=scale),
                    pseudo_instances.to(X.dtype),
                    outputs,
                    plate="labels" if name == "z" else f"latent{name[1:]}",
                    alpha=alpha,
                    beta=beta,
                    gamma=gamma,
                    fitc=fitc,
                    learn=learn,
                )
            )
        if likelihood == "experts":
            likelihood = make_likelihood("experts", B=rules.experts_from_ratio(Y))
        return cls(layers, make_likelihood(likelihood))

    @property
    def labels(self) -> int:
        """``K``."""
        return self.layers[-1].outputs

    def forward(self, X: Tensor, Y: Tensor | None = None, rows: Tensor | None = None) -> None:
        """The generative process, conditioned on ``Y`` where it is known."""
        us = [layer.sample_functions() for layer in self.layers]
        with pyro.plate("instances", len(X), subsample=rows, dim=-1):
            h = X if rows is None else X[rows]
            for layer, u in zip(self.layers, us, strict=True):
                h = layer(h, u)
            if Y is None:
                self.likelihood(h)
            else:
                self.likelihood(h, *observed(Y, torch.arange(len(X)) if rows is None else rows))

    def plug_in(self, x: Tensor, us: Sequence[Tensor]) -> list[Tensor]:
        """The mean of every layer's output with each layer's input at its mean: ``[E f_c(x), E f_z(E f_c(x))]``."""
        outputs = []
        for layer, u in zip(self.layers, us, strict=True):
            x = layer.predict(x, u)
            outputs.append(x)
        return outputs
