"""A busy device: matrix products on a second stream, for as long as a block lasts.

Contract: inside `with Load(device):` a thread keeps IN_FLIGHT products of 4096 x 4096 bf16 matrices (0.2 ms each on an
H200) queued on a stream of its own, so that another kernel's CTAs share the multiprocessors and start in other orders
than on an idle device. More in flight load it no more, and whoever waits for the device waits for them too: with 8, a
run of forward and backward took 25 ms, of 3 ms on the idle device. The block begins when the first product has been
queued. `since` counts those queued since it was asked last; an error of that thread is raised there, and at the end.
A device that runs the streams one after the other is idle between a kernel's own CTAs all the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from types import TracebackType

SIDE, IN_FLIGHT = 4096, 2
_START_S = 60


class Load:
    """Keeps a device busy; a context manager."""

    def __init__(self, device: str) -> None:
        self.device, self.products = device, 0
        self._told = 0
        self._stop, self._begun = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="fa4verify load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait(_START_S)
        if self._error is not None or self.products == 0:
            self._stop.set()
            raise self._error or RuntimeError(f"the load's first product was not queued within {_START_S} s")
        return self

    def since(self) -> int:
        """Return how many products were queued since this was asked last; raise what ended the thread."""
        if self._error is not None:
            raise self._error
        before, self._told = self._told, self.products
        return self._told - before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for what is queued."""
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _work(self) -> None:
        try:
            self._queue()
        except Exception as error:  # told by whoever waits for us
            self._error = error
            self._begun.set()

    def _queue(self) -> None:
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            a, b = (torch.randn(SIDE, SIDE, device=self.device).bfloat16() for _ in range(2))
            c = torch.empty_like(a)
            done = [torch.cuda.Event() for _ in range(IN_FLIGHT)]  # type: ignore[no-untyped-call]
            while not self._stop.is_set():
                event = done[self.products % IN_FLIGHT]
                event.synchronize()  # of the product that was queued IN_FLIGHT products ago
                torch.mm(a, b, out=c)
                event.record()
                self._queued()
            torch.cuda.current_stream().synchronize()

    def _queued(self) -> None:
        self.products += 1
        self._begun.set()
