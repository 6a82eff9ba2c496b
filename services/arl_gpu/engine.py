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

from arl_gpu.device import CopyFailed
from arl_gpu.last_order import LastOrder

__all__ = ["ASK_S", "Engine", "EngineSpec", "EngineTooLarge", "EngineTrouble", "WakeFailed", "Waking"]

ASK_S = 5.0
"""For an answer that takes the engine no work."""
LOOK_S = 0.05
"""Between looks whether it sleeps by now."""
SETTLES_S = 2.0
"""After it answered, until it is so."""
LONGEST_ANSWER = 1 << 20
DRAWN = 1 << 16
"""A process of SGLang is known by the seed that it draws at its start. Smaller ones are likely to have been given."""
HOW_TO_START = "start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"
TAGS = {"tags": ["weights", "kv_cache"]}
"""Of SGLang: all that it can release."""

Family = Literal["vllm", "sglang"]


class EngineTrouble(Exception):
    """It can't be reached, refuses, or does not do what it said."""


class EngineTooLarge(EngineTrouble):
    """Its device has less room than it takes, whoever leaves."""


class EngineUnreached(EngineTrouble):
    """No connection came about, so it was told nothing."""


class EngineRefused(EngineTrouble):
    """It answered, and not with a success."""


class WakeFailed(CopyFailed):
    """It has to be taken for awake until it says that it sleeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Where an engine is, and what it takes of its device."""

    url: str
    family: Family
    size: int
    """Bytes of the device while it is awake, whatever they are for: weights, caches, graphs."""
    wake_s: float = 120.0
    sleep_s: float = 60.0
    """The longest that it may take for either."""


class Engine:
    """Drives one. Blocks while it asks; `wake` alone goes on in a thread."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        key: str | None = None,
        is_asleep: bool = False,
        last: LastOrder | None = None,
        on_step: Callable[[], None],
    ) -> None:
        """`is_asleep`: as far as anybody knows who told it; only SGLang's is believed, unless `last` denies it.

        `on_step` is called before and after whatever its caller waits for: `ASK_S`, or at most that and `sleep_s`.
        """
        self.spec = spec
        self._on_step = on_step
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._slept: bool | None = is_asleep
        """Of SGLang, which can't be asked: whether it was told to sleep last; None where it did not answer to that."""
        self._last = last
        self._process: str | None = None
        """Of SGLang, which one it was when it was asked last; the thread in which it wakes up can't ask."""
        self._is_sure = last is None or spec.family != "sglang"
        """False where nobody knows whether it sleeps: it counts as awake, and nobody uses it or tells it anything."""
        self.refusal: str | None = None
        """Why it did not sleep when it was told to, until it is heard that it does or that it began anew."""

    @property
    def size(self) -> int:
        return self.spec.size

    def was_restarted(self) -> None:
        """Every engine is awake at its start."""
        self._slept, self._is_sure, self._process, self.refusal = False, True, None, None
        if self.spec.family == "sglang":
            with suppress(EngineTrouble):  # what is kept there is another process's
                self._keep(sleeps=False)

    def is_awake(self) -> bool:
        """As it says itself, or, where it can't be asked, as it was told last. Raises `EngineTrouble`, also unsure."""
        with self._steps():
            is_awake = self._is_awake()
        if self._is_sure:
            self.refusal = self.refusal if is_awake else None
            return is_awake
        self._recall()
        if not self._is_sure:
            raise EngineTrouble("whether it sleeps is not known, and it ends if it is used or told so then: restart it")
        return not self._slept

    def wake(self) -> "Waking":
        """Begins. One that is awake already is none the worse for it."""
        return Waking(self._wake)

    def sleep(self) -> None:
        """Returns once it sleeps. Raises `EngineTrouble`; then it has to be taken for awake."""
        if not self.is_awake():
            return
        try:
            self._sleep()
        except EngineTrouble as trouble:
            self.refusal = str(trouble)
            raise
        self.refusal = None

    def _sleep(self) -> None:
        if self.spec.family == "sglang":
            busy = "it is not idle, and nothing of ours is in flight"
            with self._steps():
                # It ends where it is told so while it still works on something, as on what was cancelled a moment ago.
                self._until(self._is_idle, busy, within_s=self.spec.sleep_s)
            self._which()
            with self._steps():
                self._tell("/release_memory_occupation", within_s=self.spec.sleep_s, sleeps=True)
            return
        with self._steps():
            # What does not know `mode` reads the level alone; nothing of ours is in flight by now.
            self._ask("POST", "/sleep?level=1&mode=wait", within_s=self.spec.sleep_s)
        with self._steps():
            self._until(lambda: not self._is_awake(), "it said that it sleeps, and does not")

    @contextmanager
    def _steps(self) -> Iterator[None]:
        """Around what the caller waits for, so that none of that counts as anything else's."""
        self._on_step()
        try:
            yield
        finally:
            self._on_step()

    def _is_awake(self) -> bool:
        if self.spec.family == "sglang":
            # Its /health generates a token, asleep or not, and any answer of another route says as much.
            self._ask("GET", "/v1/models", within_s=ASK_S, must_succeed=False)
            return not self._slept
        try:
            answer = self._ask("GET", "/is_sleeping", within_s=ASK_S)
        except EngineRefused as error:
            raise EngineTrouble(f"{error}; {HOW_TO_START}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("is_sleeping"), bool):
            raise EngineTrouble(f"its answer to /is_sleeping says neither; {HOW_TO_START}")
        return not answer["is_sleeping"]

    def _wake(self) -> None:
        """In a thread of its own: of what it waits for, the caller waits for nothing."""
        if self._is_awake():
            return
        if self.spec.family == "sglang":
            self._tell("/resume_memory_occupation", within_s=self.spec.wake_s, sleeps=False)
            return
        self._ask("POST", "/wake_up", within_s=self.spec.wake_s)
        self._until(self._is_awake, "it said that it woke, and sleeps")

    def _recall(self) -> None:
        """What another told it, or what it did not answer; again while that is not known."""
        if self._last is not None:
            slept = self._last.sleeps(self._which, asleep=self._slept)
            self._slept, self._is_sure = slept, slept is not None

    def _tell(self, path: str, *, within_s: float, sleeps: bool) -> None:
        """SGLang: until it answers with a success, nobody knows what it has done. It ends where it is told so twice."""
        self._keep(sleeps=None)
        self._is_sure, self._slept = False, None
        try:
            self._ask("POST", path, TAGS, within_s=within_s)
        except EngineUnreached:  # it was told nothing
            self._is_sure, self._slept = True, not sleeps
            self._keep(sleeps=not sleeps)
            raise
        self._is_sure, self._slept = True, sleeps
        self._keep(sleeps=sleeps)

    def _keep(self, *, sleeps: bool | None) -> None:
        try:
            if self._last is not None:
                self._last.keep(self._process, sleeps=sleeps)
        except OSError as error:
            raise EngineTrouble(f"what it is told can't be kept: {error}") from error

    def _which(self) -> str | None:
        """Of SGLang's processes, by its newer route or its older one; None where it can't be told from another."""
        self._process = None
        with suppress(EngineTrouble):
            for path in ("/server_info", "/get_server_info") if self._last is not None else ():
                with self._steps():
                    said = self._ask("GET", path, within_s=ASK_S, must_succeed=False)
                seed = said.get("random_seed") if isinstance(said, dict) else None
                if type(seed) is int and seed >= DRAWN:
                    self._process = str(seed)
                    break
        return self._process

    def _is_idle(self) -> bool:
        """Of SGLang, which empties its cache only then; a release would empty it, too."""
        try:
            self._ask("POST", "/flush_cache", within_s=ASK_S)
        except EngineRefused:
            return False
        return True

    def _until(self, holds: Callable[[], bool], otherwise: str, *, within_s: float = SETTLES_S) -> None:
        ends_at = time.monotonic() + within_s
        while not holds():
            if time.monotonic() + LOOK_S > ends_at:
                raise EngineTrouble(otherwise)
            time.sleep(LOOK_S)

    def _ask(
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
                raise EngineUnreached(f"{path.partition('?')[0]}: {type(error).__name__}: {error}") from error
            connection.request(method, f"{parts.path.rstrip('/')}{path}", content, self._headers)
            response = connection.getresponse()
            said = response.read(LONGEST_ANSWER)
        except (OSError, http.client.HTTPException, socket.gaierror) as error:
            raise EngineTrouble(f"{path.partition('?')[0]}: {type(error).__name__}: {error}") from error
        except ValueError:  # its text may quote a header, and with it the key
            raise EngineTrouble("its address or its key can't be sent") from None
        finally:
            if connection is not None:
                connection.close()
        if response.status >= 300 and must_succeed:
            shown = said[:200].decode(errors="replace")
            raise EngineRefused(f"{path.partition('?')[0]} answered {response.status}: {shown}")
        try:
            return json.loads(said)
        except ValueError:
            return None


class Waking:
    """Answers `arl_gpu.device.Event` while an engine wakes up."""

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
            self._failure = WakeFailed(f"it did not wake up: {error}")
        finally:
            self.took_s = time.monotonic() - begun
            self._ended.set()
