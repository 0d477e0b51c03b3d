"""How a command ends when it cannot go on: one sentence, and an exit code that says whose turn it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

FAILED, USAGE, MEANINGLESS, INTERRUPTED = 1, 2, 3, 130


class Failure(Exception):
    """The work cannot be done: bad data, a bad model, a full disk."""

    code = FAILED


class WrongUsage(Failure):
    """The command was not asked in a way that can work; nothing was read or written."""

    code = USAGE


class Meaningless(Failure):
    """Data and model are fine, but the answer would mean nothing, as metrics without known labels."""

    code = MEANINGLESS


def one_line(text: object) -> str:
    """A message as one line without control characters: what it quotes from a file must not steer the terminal."""
    return printable(" ".join(str(text).split()))


def printable(text: str) -> str:
    """The text with a replacement mark for every character that a terminal would act on."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def say(text: object) -> None:
    """One line on stderr."""
    typer.echo(one_line(text), err=True)


@contextmanager
def exit_codes(command: str) -> Iterator[None]:
    """Turn what a command raises into its sentence on stderr and its exit code."""
    try:
        yield
    except Failure as failure:
        say(f"esmc {command}: {failure}")
        raise typer.Exit(failure.code) from None
    except KeyboardInterrupt as interrupt:
        say(f"esmc {command}: interrupted; {str(interrupt) or 'nothing was written.'}")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader of a pipe has had enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it flushes
        raise typer.Exit(FAILED) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        say(f"esmc {command}: {place}{error.strerror or error}.")
        raise typer.Exit(FAILED) from None
    except MemoryError:
        say(f"esmc {command}: out of memory; try fewer rows (--limit) or pseudo-instances (--set pseudo=).")
        raise typer.Exit(FAILED) from None
    except (ValueError, ArithmeticError) as error:  # DataError, ModelFileError, a bound that is not finite
        say(f"esmc {command}: {error}")
        raise typer.Exit(FAILED) from None
