"""Operations of one group, carried out in the order of their issue by a thread of their own.

A collective between ranks of one device has a local part, a part across devices, and a local part again. To the script,
all this has to be one asynchronous operation: DDP issues it in the middle of a backward pass and waits at its end. One
thread per group keeps the order in which all of its ranks issue; groups do not wait for each other.
"""

from __future__ import annotations

import datetime
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

Operation = Callable[[], Sequence[Any]]
"""Returns the tensors that hold the result."""


class Issued(torch._C._distributed_c10d.Work):  # type: ignore[misc]
    """Handle of an operation, as `work.SwapWork` and torch's C++ side want it: `wait` and `get_future`."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._result: Any = torch.futures.Future(devices=[device] if device.type == "cuda" else [])
        # An exception that is set on a future is a value to C++, which DDP would take for its gradients. One that is
        # raised on the way to it is an error there, too.
        self._future: Any = self._result.then(self._arrived)
        self._error: Exception | None = None
        self._ended = threading.Event()

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Block until the result is there, and let the caller's stream see it. Raises the operation's error.

        :param timeout: zero or less, torch's way to say none: until the group's own timeout ends the operation
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if seconds > 0 and not self._ended.wait(seconds):
            raise RuntimeError(f"Timed out waiting {seconds:.3f} s for an operation of ranks that share a device")
        try:
            self._future.wait()
        except Exception:
            if self._error is not None:
                raise self._error from None  # as it was, without the way it came
            raise
        return True

    def get_future(self) -> Any:
        return self._future

    def settle(self, tensors: Sequence[Any]) -> None:
        self._result.set_result(list(tensors))
        self._ended.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._result.set_result([])
        self._ended.set()

    def _arrived(self, result: Any) -> Any:
        if self._error is not None:
            raise self._error
        return result.value()


class InOrder:
    """The thread. It holds no socket and ends with `close`."""

    def __init__(self, name: str) -> None:
        self._todo: queue.SimpleQueue[tuple[Operation, Issued, Any, Any] | None] = queue.SimpleQueue()
        self._streams: dict[Any, Any] = {}
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def issue(self, operation: Operation, device: Any) -> Issued:
        """:param device: torch.device of the tensors; on a GPU the operation sees what the caller's stream has done"""
        issued = Issued(device)
        ready = None
        if device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(device))
        self._todo.put((operation, issued, device, ready))
        return issued

    def close(self) -> None:
        """After what has been issued so far."""
        self._todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (entry := self._todo.get()) is not None:
            operation, issued, device, ready = entry
            try:
                with torch.no_grad():  # grad mode is the thread's own, and parameters are written to
                    if ready is None:
                        issued.settle(operation())
                    else:
                        self._on_stream(operation, issued, device, ready)
            except Exception as error:
                issued.fail(error)
            del operation, issued, entry  # not until the next one comes: they hold the script's tensors

    def _on_stream(self, operation: Operation, issued: Issued, device: Any, ready: Any) -> None:
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(ready)
            result = operation()
            stream.synchronize()  # the script's tensors may be freed after this only
            issued.settle(result)
