"""What every test gets: Pyro's own checks, one thread, the same seed, the same hypothesis examples in each run."""

from collections.abc import Iterator

import pyro
import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

pyro.enable_validation(True)
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    pyro.set_rng_seed(0)


@pytest.fixture
def double() -> Iterator[None]:
    """float64 as PyTorch's default for one test."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
