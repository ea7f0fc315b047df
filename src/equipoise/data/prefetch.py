"""Work ahead in threads: decode the next images while the current ones are used."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def decoder_pool() -> ThreadPoolExecutor:
    """Return a pool with one thread per core: Pillow decodes without the GIL."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="decode")


def map_ahead(
    function: Callable[[T], R], items: Iterable[T], ahead: int, pool: ThreadPoolExecutor | None = None
) -> Iterator[R]:
    """Yield ``function(item)`` in order while the pool works on up to ``ahead`` further items.

    Without a pool, one background thread does the work, so ``function`` may depend on the order of the calls.
    """
    pool = pool or ThreadPoolExecutor(1, thread_name_prefix="ahead")
    try:
        pending: deque[Future[R]] = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
