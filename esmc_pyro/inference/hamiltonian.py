"""Hamiltonian Monte Carlo and the No-U-Turn sampler, all chains in step: one gradient serves them all.

Small problems cost what their operations cost, not what their numbers cost, so several chains as the rows of one matrix
take little longer than one chain. Letters: ``q`` a state of every chain (C x D), ``p`` its momentum, ``U(q)`` the
potential energy (C,), ``H = U + p' V p / 2`` with ``V`` the inverse mass matrix, a diagonal kept as (D,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

Energy = Callable[[Tensor], Tensor]
MAX_ERROR = 1000.0  # of the energy along a trajectory, beyond which it counts as diverging


class Point(NamedTuple):
    """A place in phase space: ``q``, ``p``, the gradient of ``U`` (C x D each) and ``U`` (C,)."""

    q: Tensor
    p: Tensor
    grad: Tensor
    U: Tensor


class Draw(NamedTuple):
    """One draw of every chain: states (C x D) and what is known of the step, (C,) each."""

    q: Tensor
    energy: Tensor
    accept: Tensor
    steps: Tensor
    diverging: Tensor
    step_size: float


def slope(energy: Energy, q: Tensor) -> tuple[Tensor, Tensor]:
    """``U(q)`` and its gradient."""
    q = q.detach().requires_grad_()
    with torch.enable_grad():
        U = energy(q)
        (grad,) = torch.autograd.grad(U.sum(), q)
    return U.detach(), grad


def choose(mask: Tensor, a: Point, b: Point) -> Point:
    """``a`` for the chains where ``mask`` (C,), else ``b``."""
    rows = mask.unsqueeze(-1)
    return Point(*(torch.where(rows if x.dim() == 2 else mask, x, y) for x, y in zip(a, b, strict=True)))


class Sampler:
    """What NUTS and HMC share: the leapfrog step, the step size and the mass."""

    def __init__(self, energy: Energy, step_size: float, inverse_mass: Tensor) -> None:
        self.energy, self.step_size, self.inverse_mass = energy, step_size, inverse_mass

    def step(self, q: Tensor) -> Draw:
        """One transition of every chain, from states ``q``."""
        U, grad = slope(self.energy, q)
        return self.transition(Point(q, torch.randn_like(q) / self.inverse_mass.sqrt(), grad, U))

    def transition(self, start: Point) -> Draw:
        """A draw that leaves the target as it is, from a point with fresh momentum."""
        raise TypeError(f"{type(self).__name__} must define transition(start)")

    def leapfrog(self, at: Point, size: Tensor | float) -> Point:
        """One step of ``size`` (a number, or C x 1)."""
        p = at.p - 0.5 * size * at.grad
        q = at.q + size * self.inverse_mass * p
        U, grad = slope(self.energy, q)
        return Point(q, p - 0.5 * size * grad, grad, U)

    def hamiltonian(self, at: Point) -> Tensor:
        """``H``, infinite where it is no number: (C,)."""
        H = at.U + 0.5 * (self.inverse_mass * at.p.square()).sum(-1)
        return torch.where(torch.isnan(H), math.inf, H)


class HMC(Sampler):
    """A trajectory of half to one and a half times ``length`` (in units of the mass), so that no period is met."""

    def __init__(self, energy: Energy, step_size: float, inverse_mass: Tensor, length: float = 2.0) -> None:
        super().__init__(energy, step_size, inverse_mass)
        self.length = length

    def transition(self, start: Point) -> Draw:
        count = max(1, round(self.length * (0.5 + torch.rand(()).item()) / self.step_size))
        at = start
        for _ in range(count):
            at = self.leapfrog(at, self.step_size)
        error = self.hamiltonian(at) - self.hamiltonian(start)
        accept = (-error).exp().clamp(max=1.0)
        end = choose(torch.rand_like(accept) < accept, at, start)
        return Draw(end.q, end.U, accept, torch.full_like(accept, count), error > MAX_ERROR, self.step_size)


class NUTS(Sampler):
    """Trajectories doubled forwards or backwards until they turn; multinomial draws along them (Betancourt, 2017).

    The recursion over subtrees is unrolled: all chains build the leaf of the same number at the same time, and a
    subtree's ends are remembered in a list as long as the tree is deep.
    """

    def __init__(self, energy: Energy, step_size: float, inverse_mass: Tensor, max_depth: int = 10) -> None:
        super().__init__(energy, step_size, inverse_mass)
        self.max_depth = max_depth

    def transition(self, start: Point) -> Draw:
        H0 = self.hamiltonian(start)
        left = right = chosen = start
        log_weight, total = torch.zeros_like(H0), start.p
        going = torch.ones_like(H0, dtype=torch.bool)
        diverging, accept, steps = torch.zeros_like(going), torch.zeros_like(H0), torch.zeros_like(H0)
        for depth in range(self.max_depth):
            forwards = torch.rand_like(H0) < 0.5
            tree = _Subtree(self, choose(forwards, right, left), forwards, H0, going)
            tree.build(2**depth)
            accept, steps, diverging = accept + tree.accept, steps + tree.steps, diverging | tree.diverging
            going = tree.live
            # of the old and the new half the new one is preferred: draws far apart, and still the right target
            chosen = choose(going & (torch.rand_like(H0).log() < tree.log_weight - log_weight), tree.chosen, chosen)
            right, left = choose(going & forwards, tree.end, right), choose(going & ~forwards, tree.end, left)
            log_weight = torch.where(going, torch.logaddexp(log_weight, tree.log_weight), log_weight)
            total = torch.where(going.unsqueeze(-1), total + tree.total, total)
            going = going & ~self.turns(left.p, right.p, total)
            if not going.any():
                break
        return Draw(chosen.q, chosen.U, accept / steps, steps, diverging, self.step_size)

    def turns(self, first: Tensor, last: Tensor, total: Tensor) -> Tensor:
        """Whether a stretch with these momenta at its ends, and ``total`` along it, would get shorter: (C,)."""
        across = self.inverse_mass * (total - (first + last) / 2)
        return ((first * across).sum(-1) <= 0) | ((last * across).sum(-1) <= 0)


class _Subtree:
    """The new half of a trajectory: leaves built in order from ``end``, by the chains that are ``live``."""

    def __init__(self, nuts: NUTS, end: Point, forwards: Tensor, H0: Tensor, live: Tensor) -> None:
        self.nuts, self.end, self.H0, self.live = nuts, end, H0, live
        self.size = torch.where(forwards, nuts.step_size, -nuts.step_size).unsqueeze(-1).to(H0)
        self.chosen, self.total = end, torch.zeros_like(end.p)
        self.log_weight = torch.full_like(H0, -math.inf)
        self.accept, self.steps = torch.zeros_like(H0), torch.zeros_like(H0)
        self.diverging = torch.zeros_like(live)

    def build(self, leaves: int) -> None:
        """Add so many leaves, or fewer where no chain is live any more."""
        open_: list[tuple[Tensor, Tensor]] = []  # of each subtree that is open: its first momentum, the total before it
        for leaf in range(leaves):
            before = self.total
            self._add()
            if leaf % 2 == 0:
                open_.append((self.end.p, before))
            else:
                ending = ((leaf + 1) & -(leaf + 1)).bit_length() - 1  # subtrees of 2, 4, ... leaves end at this one
                for first, earlier in open_[-ending:]:
                    self.live = self.live & ~self.nuts.turns(first, self.end.p, self.total - earlier)
                del open_[len(open_) - ending + 1 :]  # the largest is the first half of one that is larger still
            if not self.live.any():
                return

    def _add(self) -> None:
        self.end = self.nuts.leapfrog(self.end, self.size)
        error = self.nuts.hamiltonian(self.end) - self.H0
        self.accept = self.accept + torch.where(self.live, (-error).exp().clamp(max=1.0), 0.0)
        self.steps = self.steps + self.live
        self.diverging = self.diverging | (self.live & (error > MAX_ERROR))
        self.live = self.live & ~self.diverging
        self.log_weight = torch.where(self.live, torch.logaddexp(self.log_weight, -error), self.log_weight)
        taken = self.live & (torch.rand_like(error).log() < -error - self.log_weight)
        self.chosen = choose(taken, self.end, self.chosen)
        self.total = torch.where(self.live.unsqueeze(-1), self.total + self.end.p, self.total)


class StepSize:
    """Dual averaging of the log step size towards a mean acceptance of ``target`` (Hoffman and Gelman, 2014)."""

    def __init__(self, first: float, target: float) -> None:
        self.target = target
        self.begin(first)

    def begin(self, first: float) -> None:
        """Forget what was learned, but for this step size."""
        self.centre, self.count, self.missed, self.average = math.log(10 * first), 0, 0.0, 0.0

    def update(self, accept: float) -> float:
        """The step size to try next."""
        self.count += 1
        share = 1 / (self.count + 10)
        self.missed = (1 - share) * self.missed + share * (self.target - accept)
        log_size = self.centre - self.missed * math.sqrt(self.count) / 0.05
        forget = self.count**-0.75
        self.average = forget * log_size + (1 - forget) * self.average
        return math.exp(log_size)

    def final(self) -> float:
        """The average of the step sizes tried, later ones with more weight."""
        return math.exp(self.average)


def windows(warmup: int) -> set[int]:
    """The steps of the warm-up after which the mass is set anew: at the ends of stretches that double in length.

    The first 15 % find the bulk of the target and the last 10 % settle the step size; neither counts for the mass.
    """
    begin, end = round(0.15 * warmup), warmup - max(1, round(0.1 * warmup))
    ends, length = set(), 25
    while begin + 3 * length <= end:
        begin += length
        ends.add(begin)
        length *= 2
    return ends | ({end} if end - begin >= 10 else set())


def run(sampler: Sampler, q: Tensor, warmup: int, draws: int, target: float) -> Iterator[Draw | None]:
    """Transitions of every chain from states ``q`` (C x D): None for each step of the warm-up, then ``draws`` draws.

    The warm-up sets one step size and one mass for all chains: the variances of what they all visited.
    """
    adapt = StepSize(sampler.step_size, target)
    ends, seen = windows(warmup), []
    for step in range(1, warmup + 1):
        draw = sampler.step(q)
        q = draw.q
        sampler.step_size = adapt.update(torch.nan_to_num(draw.accept).mean().item())
        if step > round(0.15 * warmup):
            seen.append(q)
        if step in ends:
            n = len(seen) * len(q)
            # shrunk a little towards a small number, as a variance of few draws is uncertain
            variance = torch.stack(seen).flatten(0, 1).var(0)
            sampler.inverse_mass = (n * variance + 5e-3) / (n + 5)
            seen = []
            adapt.begin(sampler.step_size)
        yield None
    sampler.step_size = adapt.final() if warmup else sampler.step_size
    for _ in range(draws):
        draw = sampler.step(q)
        q = draw.q
        yield draw
