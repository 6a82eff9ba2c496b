"""A small event loop: readable and writable files, timers, child exits and termination signals."""

import heapq
import itertools
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

__all__ = ["EventLoop", "LoopTimer"]


class LoopTimer:
    """A scheduled call that can be cancelled."""

    __slots__ = ("call", "due")

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Cancel the call; it is harmless after the call was made."""
        self.call = None


class EventLoop:
    """A single-threaded event loop. Every callback completes before the next one starts."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, LoopTimer]] = []
        self._order = itertools.count()
        self._is_stopping = False
        self._on_child: Callable[[int, int], None] = lambda _pid, _status: None
        self._on_terminate: Callable[[], None] = self.stop

    def install_signals(self, on_child: Callable[[int, int], None], on_terminate: Callable[[], None]) -> None:
        """Report each child exit with its wait status, and SIGTERM or SIGINT."""
        self._on_child, self._on_terminate = on_child, on_terminate
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        self._waker = waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        self.watch(woken.fileno(), lambda: self._handle_signals(woken))

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` whenever the file is readable."""
        self._selector.register(fd, selectors.EVENT_READ, [on_readable, None])

    def watch_writable(self, fd: int, on_writable: Callable[[], None] | None) -> None:
        """Also report when a watched file is writable; `None` ends that."""
        calls = self._selector.get_key(fd).data
        calls[1] = on_writable
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if on_writable else 0)
        self._selector.modify(fd, events, calls)

    def unwatch(self, fd: int) -> None:
        """Stop watching a file; an unwatched file is ignored."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> LoopTimer:
        """Call `call` after `delay_s` seconds. Return a timer that can be cancelled."""
        timer = LoopTimer(time.monotonic() + delay_s, call)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def stop(self) -> None:
        """Stop `run` after the current event."""
        self._is_stopping = True

    def run(self) -> None:
        """Handle events until `stop` is called."""
        while not self._is_stopping:
            self.run_once()

    def run_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Run until `done`. Return False if the limit passes first."""
        deadline = time.monotonic() + limit_s
        wake = self.call_later(limit_s, lambda: None)
        while not done():
            if time.monotonic() >= deadline:
                return False
            self.run_once()
        wake.cancel()
        return True

    def run_once(self) -> None:
        """Wait for the next event and handle all that are due."""
        for key, events in self._selector.select(self._timeout_s()):
            on_readable, on_writable = key.data
            if events & selectors.EVENT_WRITE and on_writable is not None:
                on_writable()
            if events & selectors.EVENT_READ and self._is_watched(key):
                on_readable()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                timer.call()

    def _is_watched(self, key: selectors.SelectorKey) -> bool:
        """Return True if the file is still watched: an earlier callback may have closed it or reused its number."""
        current = self._selector.get_map().get(key.fd)
        return current is not None and current.data is key.data

    def _timeout_s(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _handle_signals(self, woken: socket.socket) -> None:
        numbers = woken.recv(4096)
        if signal.SIGCHLD in numbers:
            self._reap()
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._on_terminate()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_child(pid, status)
