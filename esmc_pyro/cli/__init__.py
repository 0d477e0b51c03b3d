"""The command line, `esmc`. Nothing here loads PyTorch before a command needs it."""

from esmc_pyro.cli.app import app, main

__all__ = ["app", "main"]
