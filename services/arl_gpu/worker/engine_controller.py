"""Control of an inference engine in its own process: it is put to sleep and woken by HTTP.

The engine's memory counts while the engine is awake, and until the engine itself reports that it sleeps: a `sleep` that
returns 200 may have freed nothing (vllm-project/vllm#47654). No request is retried.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from arl_gpu.devices.interface import CopyFailed
from arl_gpu.worker.engine_state_file import EngineStateFile

__all__ = [
    "CONTROL_TIMEOUT_S",
    "EngineController",
    "EngineError",
    "EngineSpec",
    "EngineTooLarge",
    "EngineWakeFailed",
    "EngineWakeup",
]

CONTROL_TIMEOUT_S = 5.0
"""Timeout in seconds of requests that need no work of the engine."""
STATE_POLL_S = 0.05
"""Seconds between checks of an engine that falls asleep."""
SETTLE_TIMEOUT_S = 2.0
"""Maximum seconds from a response until the engine's state matches it."""
MAX_RESPONSE_BYTES = 1 << 20
MIN_RANDOM_SEED = 1 << 16
"""Smallest random seed that identifies an SGLang process, which draws one at its start. Users may set smaller ones."""
START_INSTRUCTIONS = "Start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"
MEMORY_TAGS = {"tags": ["weights", "kv_cache"]}
"""Request body for SGLang: all memory that it can release."""

EngineFamily = Literal["vllm", "sglang"]


class EngineError(Exception):
    """An engine that is unreachable, refuses a request, or does not do what it reported."""


class EngineTooLarge(EngineError):
    """An engine that needs more memory than its device has in total."""


class EngineUnreachable(EngineError):
    """A failed connection; the engine received no command."""


class EngineRequestRefused(EngineError):
    """A response of the engine with an error status."""


class EngineWakeFailed(CopyFailed):
    """A failed wake-up. The engine counts as awake until it reports that it sleeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The address of an engine and its device memory."""

    url: str
    family: EngineFamily
    size: int
    """Bytes of the device while the engine is awake: weights, caches and graphs."""
    wake_timeout_s: float = 120.0
    sleep_timeout_s: float = 60.0
    """Maximum seconds of a wake-up, and of falling asleep."""


class EngineController:
    """A controller of one engine. Calls block during requests; only `wake` runs in a thread."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        key: str | None = None,
        is_asleep: bool = False,
        state_file: EngineStateFile | None = None,
        on_progress: Callable[[], None],
    ) -> None:
        """Initialise the controller.

        Args:
            spec: The engine.
            key: The API key of its control requests.
            is_asleep: The last known state. Only SGLang uses it, unless `state_file` contradicts it.
            state_file: The persisted state of an SGLang engine.
            on_progress: Called before and after each wait. A wait takes at most `CONTROL_TIMEOUT_S` plus
                `sleep_timeout_s`.
        """
        self.spec = spec
        self._on_progress = on_progress
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._sleep_commanded: bool | None = is_asleep
        """True if SGLang's last command was to sleep; None without a response. SGLang cannot report this state."""
        self._state_file = state_file
        self._process_seed: str | None = None
        """Seed of the SGLang process at the last check; the wake-up thread cannot query it."""
        self._is_state_known = state_file is None or spec.family != "sglang"
        """False if the sleep state is unknown: the engine counts as awake, but gets no requests and no commands."""
        self.sleep_error: str | None = None
        """Reason why it did not sleep on command, until it is known that it sleeps or has restarted."""

    @property
    def size(self) -> int:
        """Return the bytes of the device that the engine uses while it is awake."""
        return self.spec.size

    def mark_restarted(self) -> None:
        """Record that the engine was restarted; an engine starts awake."""
        self._sleep_commanded, self._is_state_known, self._process_seed, self.sleep_error = False, True, None, None
        if self.spec.family == "sglang":
            with suppress(EngineError):  # the file describes the previous process
                self._save_state(sleeps=False)

    def is_awake(self) -> bool:
        """Return True if the engine reports that it is awake; SGLang's state is that of the last command.

        Raises `EngineError`, also if the state is unknown.
        """
        with self._progress_scope():
            is_awake = self._is_awake()
        if self._is_state_known:
            self.sleep_error = self.sleep_error if is_awake else None
            return is_awake
        self._restore_state()
        if not self._is_state_known:
            raise EngineError(
                "the sleep state of the engine is unknown, and a wrong command would end the engine: restart the engine"
            )
        return not self._sleep_commanded

    def wake(self) -> "EngineWakeup":
        """Start to wake the engine. Waking an awake engine has no effect."""
        return EngineWakeup(self._wake)

    def sleep(self) -> None:
        """Put the engine to sleep and wait for it. Raises `EngineError`; then the engine counts as awake."""
        if not self.is_awake():
            return
        try:
            self._sleep()
        except EngineError as trouble:
            self.sleep_error = str(trouble)
            raise
        self.sleep_error = None

    def _sleep(self) -> None:
        if self.spec.family == "sglang":
            busy = "the engine is not idle, although this node has no requests in flight"
            with self._progress_scope():
                # SGLang exits if it gets the command while it still processes a request, such as one that was just
                # cancelled.
                self._wait_until(self._is_idle, busy, within_s=self.spec.sleep_timeout_s)
            self._identify_process()
            with self._progress_scope():
                self._send_command("/release_memory_occupation", within_s=self.spec.sleep_timeout_s, sleeps=True)
            return
        with self._progress_scope():
            # Versions without `mode` ignore it. No request of this node is in flight.
            self._request("POST", "/sleep?level=1&mode=wait", within_s=self.spec.sleep_timeout_s)
        with self._progress_scope():
            self._wait_until(lambda: not self._is_awake(), "the engine reported that it sleeps, but it does not")

    @contextmanager
    def _progress_scope(self) -> Iterator[None]:
        """Report progress before and after a wait, so that the wait does not count against the order's timeout."""
        self._on_progress()
        try:
            yield
        finally:
            self._on_progress()

    def _is_awake(self) -> bool:
        if self.spec.family == "sglang":
            # SGLang's /health generates a token, asleep or not. Any response of another route shows that it runs.
            self._request("GET", "/v1/models", within_s=CONTROL_TIMEOUT_S, must_succeed=False)
            return not self._sleep_commanded
        try:
            answer = self._request("GET", "/is_sleeping", within_s=CONTROL_TIMEOUT_S)
        except EngineRequestRefused as error:
            raise EngineError(f"{error}. {START_INSTRUCTIONS}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("is_sleeping"), bool):
            raise EngineError(f"the engine's response to /is_sleeping is invalid. {START_INSTRUCTIONS}")
        return not answer["is_sleeping"]

    def _wake(self) -> None:
        """Wake the engine in a separate thread; the caller does not wait for it."""
        if self._is_awake():
            return
        if self.spec.family == "sglang":
            self._send_command("/resume_memory_occupation", within_s=self.spec.wake_timeout_s, sleeps=False)
            return
        self._request("POST", "/wake_up", within_s=self.spec.wake_timeout_s)
        self._wait_until(self._is_awake, "the engine reported that it woke up, but it sleeps")

    def _restore_state(self) -> None:
        """Read the persisted state, which includes commands of earlier processes. Repeat while the state is unknown."""
        if self._state_file is not None:
            slept = self._state_file.is_asleep(self._identify_process, asleep=self._sleep_commanded)
            self._sleep_commanded, self._is_state_known = slept, slept is not None

    def _send_command(self, path: str, *, within_s: float, sleeps: bool) -> None:
        """Send a command to SGLang. The state is unknown until it succeeds; repeating a command ends SGLang."""
        self._save_state(sleeps=None)
        self._is_state_known, self._sleep_commanded = False, None
        try:
            self._request("POST", path, MEMORY_TAGS, within_s=within_s)
        except EngineUnreachable:  # it received no command
            self._is_state_known, self._sleep_commanded = True, not sleeps
            self._save_state(sleeps=not sleeps)
            raise
        self._is_state_known, self._sleep_commanded = True, sleeps
        self._save_state(sleeps=sleeps)

    def _save_state(self, *, sleeps: bool | None) -> None:
        try:
            if self._state_file is not None:
                self._state_file.save(self._process_seed, sleeps=sleeps)
        except OSError as error:
            raise EngineError(f"the state of the engine could not be saved: {error}") from error

    def _identify_process(self) -> str | None:
        """Return the id of the SGLang process by its newer or older route; None if it is not unique."""
        self._process_seed = None
        with suppress(EngineError):
            for path in ("/server_info", "/get_server_info") if self._state_file is not None else ():
                with self._progress_scope():
                    said = self._request("GET", path, within_s=CONTROL_TIMEOUT_S, must_succeed=False)
                seed = said.get("random_seed") if isinstance(said, dict) else None
                if type(seed) is int and seed >= MIN_RANDOM_SEED:
                    self._process_seed = str(seed)
                    break
        return self._process_seed

    def _is_idle(self) -> bool:
        """Return True if SGLang is idle. It flushes its cache only then; a release would flush the cache too."""
        try:
            self._request("POST", "/flush_cache", within_s=CONTROL_TIMEOUT_S)
        except EngineRequestRefused:
            return False
        return True

    def _wait_until(
        self, condition: Callable[[], bool], error_message: str, *, within_s: float = SETTLE_TIMEOUT_S
    ) -> None:
        ends_at = time.monotonic() + within_s
        while not condition():
            if time.monotonic() + STATE_POLL_S > ends_at:
                raise EngineError(error_message)
            time.sleep(STATE_POLL_S)

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        within_s: float,
        must_succeed: bool = True,
    ) -> Any:
        """Return the JSON response, or None if it is no JSON. `within_s` limits each read; responses are short."""
        connection: http.client.HTTPConnection | None = None
        try:
            parts = urlsplit(self.spec.url)
            make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            connection = make(parts.hostname or "", parts.port, timeout=within_s)
            content = json.dumps(body) if body is not None else None
            try:
                connection.connect()
            except OSError as error:
                raise EngineUnreachable(f"{path.partition('?')[0]}: {type(error).__name__}: {error}") from error
            connection.request(method, f"{parts.path.rstrip('/')}{path}", content, self._headers)
            response = connection.getresponse()
            said = response.read(MAX_RESPONSE_BYTES)
        except (OSError, http.client.HTTPException, socket.gaierror) as error:
            raise EngineError(f"{path.partition('?')[0]}: {type(error).__name__}: {error}") from error
        except ValueError:  # the error text may quote a header, and with it the key
            raise EngineError("the engine's address or key is invalid") from None
        finally:
            if connection is not None:
                connection.close()
        if response.status >= 300 and must_succeed:
            shown = said[:200].decode(errors="replace")
            raise EngineRequestRefused(
                f"the engine answered {path.partition('?')[0]} with status {response.status}: {shown}"
            )
        try:
            return json.loads(said)
        except ValueError:
            return None


class EngineWakeup:
    """The progress of a wake-up, as an `arl_gpu.devices.interface.CopyEvent`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.took_s = 0.0
        self._failure: CopyFailed | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(wake,), name="engine wakes", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Return True if the wake-up has ended, successfully or not."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Wait until the wake-up has ended. Raises `EngineWakeFailed`."""
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self, wake: Callable[[], None]) -> None:
        begun = time.monotonic()
        try:
            wake()
        except Exception as error:  # noqa: BLE001 - `wait` raises it; no caller is above this thread
            self._failure = EngineWakeFailed(f"the engine did not wake up: {error}")
        finally:
            self.took_s = time.monotonic() - begun
            self._ended.set()
