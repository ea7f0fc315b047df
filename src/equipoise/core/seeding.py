"""Random numbers addressed by keys instead of carried along as generator state.

Every draw belongs to a key such as ``(seed, "step", 3, "epoch", 7)``. A run that was stopped can therefore continue
from any epoch with the draws it would have had, and no generator state has to be saved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

Key = tuple[int | str, ...]


def seed_for(*key: int | str) -> int:
    """Return a 63-bit seed for ``key``, the same on every machine and Python.

    >>> seed_for(0, "step", 1) == seed_for(0, "step", 1), seed_for(0, "step", 1) == seed_for(0, "step", 2)
    (True, False)
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*key: int | str) -> torch.Generator:
    """Return a CPU generator seeded by ``key``."""
    return torch.Generator().manual_seed(seed_for(*key))


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore torch's global generators at the end of the block: the caller's random numbers are not ours to change."""
    cuda = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    with torch.random.fork_rng(devices=range(cuda)):
        yield


def seed_everything(*key: int | str) -> None:
    """Seed torch's global generators (initialisation, dropout) by ``key``."""
    torch.manual_seed(seed_for(*key))
