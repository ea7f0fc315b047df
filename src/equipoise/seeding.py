"""Randomness that is addressed, not carried along.

Every random draw belongs to a key such as ``(seed, "step", 3, "epoch", 7)``. A run that was stopped can therefore
go on from any epoch with the very draws it would have had, and no generator state has to be saved.
"""

from __future__ import annotations

import hashlib

import torch

Key = tuple[int | str, ...]


def number(*key: int | str) -> int:
    """A 63-bit seed for ``key``; the same on every machine and Python.

    >>> number(0, "step", 1) == number(0, "step", 1), number(0, "step", 1) == number(0, "step", 2)
    (True, False)
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator that starts at ``key``."""
    return torch.Generator().manual_seed(number(*key))


def seed_everything(*key: int | str) -> None:
    """Start torch's global generators (initialisation, dropout) at ``key``."""
    torch.manual_seed(number(*key))
