"""The processes that learn together, if there are several: who we are, and what all must know.

A process is called by its rank, 0, 1, 2, …; the first speaks to the user and writes files. With one process
everything here costs nothing and changes nothing. Who starts the processes is told in ``study/processes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise.errors import EquipoiseError, RunError, ToldError, sentence

T = TypeVar("T")
_alone = False


GO_ON = "every finished epoch is saved, and the same command goes on from there"


class LostError(RunError):
    """Another process is gone."""


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() and not _alone else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() and not _alone else 0


def first() -> bool:
    return rank() == 0


@contextmanager
def alone() -> Iterator[None]:
    """Work inside is this process's own, whole and unshared."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


@contextmanager
def company() -> Iterator[None]:
    """Where one process waits for the others: that one of them is gone becomes a sentence."""
    try:
        yield
    except RuntimeError as error:  # gloo raises no kind of its own
        if world() > 1 and any(word in str(error) for word in ("gloo/transport", "NCCL", "Connection closed by peer")):
            raise LostError(
                f"another process of this run has ended (see what it said, if anything): {GO_ON}"
            ) from error
        raise


def tell(make: Callable[[], T]) -> T:
    """What the first process makes, told to all. Its errors too, so that no one waits for what will not come."""
    if world() == 1:
        return make()
    said: list[Any] = [None, None]
    failure: Exception | None = None
    if first():
        try:
            said[0] = make()
        except EquipoiseError as error:
            failure, said[1] = error, str(error)
        except OSError as error:
            failure, said[1] = error, sentence(error)
    with company():
        dist.broadcast_object_list(said, src=0)
    if failure is not None:
        raise failure
    if said[1] is not None:
        raise ToldError(said[1])
    value: T = said[0]
    return value


def everybodys(error: EquipoiseError) -> EquipoiseError:
    """An error that all processes have found alike, to be said by one."""
    return error if first() else ToldError(str(error))


def after_first(make: Callable[[], T]) -> T:
    """What each process makes for itself, the first before the others: what it downloads or keeps, they find."""
    made: list[T] = []
    tell(lambda: made.append(make()))
    return made[0] if made else make()


def total(tensor: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if world() > 1:
        with company():
            dist.all_reduce(tensor)
    return tensor


def share(batch: Tensor) -> Tensor:
    """This process's part of a batch; a batch too small for batch norm in every part is everybody's, whole."""
    count = world()
    return batch if len(batch) < 2 * count else batch.tensor_split(count)[rank()]


def weight(batch: Tensor) -> float:
    """What this process's mean loss counts: the mean over all processes is then the mean over the batch."""
    return len(share(batch)) * world() / len(batch) if len(batch) >= 2 * world() else 1.0


def mean_of_some(values: Tensor, batch: int) -> Tensor:
    """The mean of what only some images of a batch have, where this process has ``batch`` of its images.

    A loss is a mean over a share, and shares are weighted by their size; such a part would weigh wrongly, for a share
    may have more or fewer of those images.
    """
    some, everything = total(torch.tensor([float(len(values)), float(batch)])).tolist()
    mean: Tensor = values.sum() * (everything / (batch * max(some, 1.0)))
    return mean


def rows(mine: dict[int, Tensor], sizes: list[int]) -> Tensor:
    """Blocks of rows, each computed by one process (``mine``: this one's, by number), behind one another for all."""
    if world() == 1:
        return torch.cat([mine[number] for number in range(len(sizes))])
    columns = torch.tensor(max((block.shape[1] for block in mine.values()), default=0))
    with company():
        dist.all_reduce(columns, dist.ReduceOp.MAX)  # a process without a block cannot know
    whole = torch.zeros(sum(sizes), int(columns))
    for number, place in enumerate(whole.split(sizes)):
        if number in mine:
            place.copy_(mine[number])
    return total(whole)  # to add nothing changes nothing


@torch.no_grad()
def settle(module: nn.Module) -> None:
    """Running statistics of batch norms, which every process gathered on its own images, become their mean."""
    if world() == 1:
        return
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    for norm in norms:
        for statistic in (norm.running_mean, norm.running_var):
            if statistic is not None:
                statistic.copy_(total(statistic.clone()) / world())


@torch.no_grad()
def agree(module: nn.Module) -> None:
    """Everybody takes the first's weights: on unlike machines the last bit of the same sum may differ."""
    if world() > 1:
        with company():
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, src=0)
