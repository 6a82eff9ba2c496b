"""An engine that generates, in a process of its own beside this one: it is put to sleep and woken by HTTP.

What it holds of a device counts there while it is awake, and until it says itself that it sleeps: a `sleep` that is
answered by 200 may have freed nothing (vllm-project/vllm#47654). Nothing here is tried twice.
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
"""For an answer that takes the engine no work."""
STATE_POLL_S = 0.05
"""Between looks whether it sleeps by now."""
SETTLE_TIMEOUT_S = 2.0
"""After it answered, until it is so."""
MAX_RESPONSE_BYTES = 1 << 20
MIN_RANDOM_SEED = 1 << 16
"""A process of SGLang is known by the seed that it draws at its start. Smaller ones are likely to have been given."""
START_INSTRUCTIONS = "start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"
MEMORY_TAGS = {"tags": ["weights", "kv_cache"]}
"""Of SGLang: all that it can release."""

EngineFamily = Literal["vllm", "sglang"]


class EngineError(Exception):
    """It can't be reached, refuses, or does not do what it said."""


class EngineTooLarge(EngineError):
    """Its device has less room than it takes, whoever leaves."""


class EngineUnreachable(EngineError):
    """No connection came about, so it was told nothing."""


class EngineRequestRefused(EngineError):
    """It answered, and not with a success."""


class EngineWakeFailed(CopyFailed):
    """It has to be taken for awake until it says that it sleeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Where an engine is, and what it takes of its device."""

    url: str
    family: EngineFamily
    size: int
    """Bytes of the device while it is awake, whatever they are for: weights, caches, graphs."""
    wake_timeout_s: float = 120.0
    sleep_timeout_s: float = 60.0
    """The longest that it may take for either."""


class EngineController:
    """Drives one. Blocks while it asks; `wake` alone goes on in a thread."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        key: str | None = None,
        is_asleep: bool = False,
        state_file: EngineStateFile | None = None,
        on_progress: Callable[[], None],
    ) -> None:
        """`is_asleep`: as far as anybody knows who told it; only SGLang's is believed, unless `last` denies it.

        `on_step` is called before and after whatever its caller waits for: `ASK_S`, or at most that and
        `sleep_timeout_s`.
        """
        self.spec = spec
        self._on_progress = on_progress
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._sleep_commanded: bool | None = is_asleep
        """Of SGLang, which can't be asked: whether it was told to sleep last; None where it did not answer to that."""
        self._state_file = state_file
        self._process_seed: str | None = None
        """Of SGLang, which one it was when it was asked last; the thread in which it wakes up can't ask."""
        self._is_state_known = state_file is None or spec.family != "sglang"
        """False where nobody knows whether it sleeps: it counts as awake, and nobody uses it or tells it anything."""
        self.sleep_error: str | None = None
        """Why it did not sleep when it was told to, until it is heard that it does or that it began anew."""

    @property
    def size(self) -> int:
        return self.spec.size

    def mark_restarted(self) -> None:
        """Every engine is awake at its start."""
        self._sleep_commanded, self._is_state_known, self._process_seed, self.sleep_error = False, True, None, None
        if self.spec.family == "sglang":
            with suppress(EngineError):  # what is kept there is another process's
                self._save_state(sleeps=False)

    def is_awake(self) -> bool:
        """As it says itself, or, where it can't be asked, as it was told last. Raises `EngineTrouble`, also unsure."""
        with self._progress_scope():
            is_awake = self._is_awake()
        if self._is_state_known:
            self.sleep_error = self.sleep_error if is_awake else None
            return is_awake
        self._restore_state()
        if not self._is_state_known:
            raise EngineError("whether it sleeps is not known, and it ends if it is used or told so then: restart it")
        return not self._sleep_commanded

    def wake(self) -> "EngineWakeup":
        """Begins. One that is awake already is none the worse for it."""
        return EngineWakeup(self._wake)

    def sleep(self) -> None:
        """Returns once it sleeps. Raises `EngineTrouble`; then it has to be taken for awake."""
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
            busy = "it is not idle, and nothing of ours is in flight"
            with self._progress_scope():
                # It ends where it is told so while it still works on something, as on what was cancelled a moment ago.
                self._wait_until(self._is_idle, busy, within_s=self.spec.sleep_timeout_s)
            self._identify_process()
            with self._progress_scope():
                self._send_command("/release_memory_occupation", within_s=self.spec.sleep_timeout_s, sleeps=True)
            return
        with self._progress_scope():
            # What does not know `mode` reads the level alone; nothing of ours is in flight by now.
            self._request("POST", "/sleep?level=1&mode=wait", within_s=self.spec.sleep_timeout_s)
        with self._progress_scope():
            self._wait_until(lambda: not self._is_awake(), "it said that it sleeps, and does not")

    @contextmanager
    def _progress_scope(self) -> Iterator[None]:
        """Around what the caller waits for, so that none of that counts as anything else's."""
        self._on_progress()
        try:
            yield
        finally:
            self._on_progress()

    def _is_awake(self) -> bool:
        if self.spec.family == "sglang":
            # Its /health generates a token, asleep or not, and any answer of another route says as much.
            self._request("GET", "/v1/models", within_s=CONTROL_TIMEOUT_S, must_succeed=False)
            return not self._sleep_commanded
        try:
            answer = self._request("GET", "/is_sleeping", within_s=CONTROL_TIMEOUT_S)
        except EngineRequestRefused as error:
            raise EngineError(f"{error}; {START_INSTRUCTIONS}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("is_sleeping"), bool):
            raise EngineError(f"its answer to /is_sleeping says neither; {START_INSTRUCTIONS}")
        return not answer["is_sleeping"]

    def _wake(self) -> None:
        """In a thread of its own: of what it waits for, the caller waits for nothing."""
        if self._is_awake():
            return
        if self.spec.family == "sglang":
            self._send_command("/resume_memory_occupation", within_s=self.spec.wake_timeout_s, sleeps=False)
            return
        self._request("POST", "/wake_up", within_s=self.spec.wake_timeout_s)
        self._wait_until(self._is_awake, "it said that it woke, and sleeps")

    def _restore_state(self) -> None:
        """What another told it, or what it did not answer; again while that is not known."""
        if self._state_file is not None:
            slept = self._state_file.is_asleep(self._identify_process, asleep=self._sleep_commanded)
            self._sleep_commanded, self._is_state_known = slept, slept is not None

    def _send_command(self, path: str, *, within_s: float, sleeps: bool) -> None:
        """SGLang: until it answers with a success, nobody knows what it has done. It ends where it is told so twice."""
        self._save_state(sleeps=None)
        self._is_state_known, self._sleep_commanded = False, None
        try:
            self._request("POST", path, MEMORY_TAGS, within_s=within_s)
        except EngineUnreachable:  # it was told nothing
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
            raise EngineError(f"what it is told can't be kept: {error}") from error

    def _identify_process(self) -> str | None:
        """Of SGLang's processes, by its newer route or its older one; None where it can't be told from another."""
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
        """Of SGLang, which empties its cache only then; a release would empty it, too."""
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
        """What it answered, None where that is no JSON. `within_s` bounds each read, and an answer is short."""
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
        except ValueError:  # its text may quote a header, and with it the key
            raise EngineError("its address or its key can't be sent") from None
        finally:
            if connection is not None:
                connection.close()
        if response.status >= 300 and must_succeed:
            shown = said[:200].decode(errors="replace")
            raise EngineRequestRefused(f"{path.partition('?')[0]} answered {response.status}: {shown}")
        try:
            return json.loads(said)
        except ValueError:
            return None


class EngineWakeup:
    """Answers `arl_gpu.devices.interface.Event` while an engine wakes up."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.took_s = 0.0
        self._failure: CopyFailed | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(wake,), name="engine wakes", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self, wake: Callable[[], None]) -> None:
        begun = time.monotonic()
        try:
            wake()
        except Exception as error:  # noqa: BLE001 - whoever waits hears of it; this thread has nobody above it
            self._failure = EngineWakeFailed(f"it did not wake up: {error}")
        finally:
            self.took_s = time.monotonic() - begun
            self._ended.set()
