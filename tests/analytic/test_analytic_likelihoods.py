"""The analytic solver takes every likelihood there is, or says in one sentence why not."""

import pytest
import torch
from analytic_problems import make_data, make_model

from esmc_pyro.inference import fit_analytic
from esmc_pyro.models import LIKELIHOODS, make_likelihood


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_raises_the_bound_or_is_refused(name: str) -> None:
    X, Y = make_data(0)
    likelihood = make_likelihood(name, Y, **({"c": 0.3} if name == "mpu" else {}))
    model = make_model(X, 3, [], likelihood)
    if likelihood.LEARNS:
        with pytest.raises(ValueError, match=f"the likelihood {type(likelihood).__name__} with parameters to learn"):
            fit_analytic(model, X[:5], Y, X[5:], progress=False)
        likelihood.requires_grad_(False)
    before = [parameter.detach().clone() for parameter in likelihood.parameters()]
    elbo = fit_analytic(model, X[:5], Y, X[5:], sweeps=3, progress=False).history["elbo"]
    assert (elbo.diff().dropna() >= -1e-9).all()
    assert elbo.iloc[-1] > elbo.iloc[0]
    assert all(torch.equal(a, b) for a, b in zip(before, likelihood.parameters(), strict=True))
