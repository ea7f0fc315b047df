"""The processes that train one model together, if there are several.

Rank 0 is the main process: it talks to the user and writes files. With a single process every function here is a
no-op, so callers need no second code path. ``study/process_group.py`` starts the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise.errors import EquipoiseError, ReportedError, RunError, describe_os_error

T = TypeVar("T")
_local = False

RESUME_HINT = "every finished epoch is saved; run the same command again to continue"


class LostPeerError(RunError):
    """Another process of the group has exited."""


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() and not _local else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() and not _local else 0


def is_main() -> bool:
    """Return whether this is rank 0."""
    return rank() == 0


@contextmanager
def local() -> Iterator[None]:
    """Act as a single process inside the block."""
    global _local
    before, _local = _local, True
    try:
        yield
    finally:
        _local = before


@contextmanager
def peer_errors() -> Iterator[None]:
    """Turn a lost peer into a readable error."""
    try:
        yield
    except RuntimeError as error:  # gloo has no exception class of its own
        signs = ("gloo/transport", "NCCL", "Connection closed by peer")
        if world_size() > 1 and any(sign in str(error) for sign in signs):
            raise LostPeerError(f"another process of this run has exited (see its output): {RESUME_HINT}") from error
        raise


def broadcast(make: Callable[[], T]) -> T:
    """Run ``make`` on rank 0 and broadcast the result, or its error, so that no process waits forever."""
    if world_size() == 1:
        return make()
    message: list[Any] = [None, None]
    failure: Exception | None = None
    if is_main():
        try:
            message[0] = make()
        except (EquipoiseError, OSError) as error:
            failure, message[1] = error, describe_os_error(error) if isinstance(error, OSError) else str(error)
    with peer_errors():
        dist.broadcast_object_list(message, src=0)
    if failure is not None:
        raise failure
    if message[1] is not None:
        raise ReportedError(message[1])
    value: T = message[0]
    return value


def report_once(error: EquipoiseError) -> EquipoiseError:
    """Return an error that all processes raise at the same point, silenced on all ranks but 0."""
    return error if is_main() else ReportedError(str(error))


def main_first(make: Callable[[], T]) -> T:
    """Run ``make`` on rank 0 and then on all others, so that they can use what it downloads or caches."""
    made: list[T] = []
    broadcast(lambda: made.append(make()))
    return made[0] if made else make()


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place."""
    if world_size() > 1:
        with peer_errors():
            dist.all_reduce(tensor)
    return tensor


def shard(batch: Tensor) -> Tensor:
    """Return this process's part of a batch.

    Every process gets the whole batch if it is too small to leave batch norm two images per part.
    """
    count = world_size()
    return batch if len(batch) < 2 * count else batch.tensor_split(count)[rank()]


def shard_weight(batch: Tensor) -> float:
    """Return the weight of this process's mean loss, so that the mean over processes is the mean over the batch."""
    return len(shard(batch)) * world_size() / len(batch) if len(batch) >= 2 * world_size() else 1.0


def subset_mean(values: Tensor, batch: int) -> Tensor:
    """Average a term that only some images of a batch have; this process holds ``batch`` of the batch's images.

    A plain mean would weight the term wrongly, because shards are weighted by their size and may hold more or fewer
    of those images.
    """
    some, everything = all_reduce_sum(torch.tensor([float(len(values)), float(batch)])).tolist()
    mean: Tensor = values.sum() * (everything / (batch * max(some, 1.0)))
    return mean


def gather_rows(mine: dict[int, Tensor], sizes: list[int]) -> Tensor:
    """Concatenate blocks of rows that the processes computed; ``mine`` holds this process's blocks by number.

    One process takes each block out of ``mine``, so that rows are not in memory twice.
    """
    if world_size() == 1:
        whole = torch.empty((sum(sizes), *mine[0].shape[1:]), dtype=mine[0].dtype)
        for number, place in enumerate(whole.split(sizes)):
            place.copy_(mine.pop(number))
        return whole
    columns = torch.tensor(max((block.shape[1] for block in mine.values()), default=0))
    with peer_errors():
        dist.all_reduce(columns, dist.ReduceOp.MAX)  # a process without a block cannot know the width
    whole = torch.zeros(sum(sizes), int(columns))
    for number, place in enumerate(whole.split(sizes)):
        if number in mine:
            place.copy_(mine[number])
    return all_reduce_sum(whole)  # every other process adds zeros


@torch.no_grad()
def average_batch_norms(module: nn.Module) -> None:
    """Average the running statistics of batch norms, which each process collected on its own images."""
    if world_size() == 1:
        return
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    for statistic in (buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)):
        if statistic is not None:
            statistic.copy_(all_reduce_sum(statistic.clone()) / world_size())


@torch.no_grad()
def broadcast_weights(module: nn.Module) -> None:
    """Copy rank 0's weights to all: on different processors the same sum may differ in its last bit."""
    if world_size() > 1:
        with peer_errors():
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, src=0)
