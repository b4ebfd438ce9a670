"""Running tasks over local processes, or over Ray Data on many hosts.

A task is a module-level function of a state, which each worker makes once, and an item; what it leaves on disk depends on the item
alone. So both pools give the same files, whatever the number of workers and the order in which they finish. Over Ray the
folders that tasks read and write must be the same on every host, as on a shared file system.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, Literal

Pool = Literal["processes", "ray"]

_state: Any = None
"""What this worker process was started with."""


def run(
    task: Callable[[Any, Any], Any],
    items: Sequence[Any],
    *,
    start: Callable[..., Any],
    start_args: tuple[Any, ...],
    workers: int,
    pool: Pool = "processes",
    tasks_per_process: int | None = None,
) -> Iterator[Any]:
    """Yield `task(start(*start_args), item)` for every item, in any order.

    Args:
        start: makes the state of a worker; called once in each.
        workers: processes, or Ray actors; 1 works here and now when the pool is local.
        tasks_per_process: a local process is replaced after so many items; None keeps it.

    Raises:
        ValueError: Ray was asked for and is not installed.
    """
    if pool == "ray":
        return _over_ray(task, items, start, start_args, workers)
    if min(workers, len(items)) <= 1:
        state = start(*start_args) if items else None
        return (task(state, item) for item in items)
    return _in_processes(task, items, start, start_args, min(workers, len(items)), tasks_per_process)


def _in_processes(
    task: Callable[[Any, Any], Any],
    items: Sequence[Any],
    start: Callable[..., Any],
    start_args: tuple[Any, ...],
    workers: int,
    tasks_per_process: int | None,
) -> Iterator[Any]:
    # Spawned, not forked: polars, pyarrow and tokenizers have threads of their own.
    with ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(start, start_args),
        max_tasks_per_child=tasks_per_process,
    ) as pool:
        running = [pool.submit(_do, task, item) for item in items]
        try:
            for future in as_completed(running):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(start: Callable[..., Any], start_args: tuple[Any, ...]) -> None:
    global _state
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    _state = start(*start_args)


def _do(task: Callable[[Any, Any], Any], item: Any) -> Any:
    return task(_state, item)


class _Actor:
    """A Ray worker: makes its state once, then does the items whose numbers it is given."""

    def __init__(
        self,
        task: Callable[[Any, Any], Any],
        items: Sequence[Any],
        start: Callable[..., Any],
        start_args: tuple[Any, ...],
    ) -> None:
        self._task, self._items = task, items
        self._state = start(*start_args)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"result": self._task(self._state, self._items[row["item"]])}


def _over_ray(
    task: Callable[[Any, Any], Any],
    items: Sequence[Any],
    start: Callable[..., Any],
    start_args: tuple[Any, ...],
    workers: int,
) -> Iterator[Any]:
    try:
        import ray.data
    except ImportError as error:
        raise ValueError("--pool ray needs Ray: pip install 'draftmill[ray]'") from error
    if not items:
        return
    numbers = ray.data.from_items([{"item": number} for number in range(len(items))], override_num_blocks=len(items))
    logging.getLogger("ray.data").setLevel(logging.WARNING)  # it logs its progress, we show ours
    actors = ray.data.ActorPoolStrategy(size=min(workers, len(items)))
    done = numbers.map(_Actor, fn_constructor_args=(task, list(items), start, start_args), compute=actors)
    for row in done.iter_rows():
        yield row["result"]
