"""Tensor-parallel models on real workers: the scores equal those of the whole model."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from arl_gpu.catalog.service_files import ModelNotShardable
from arl_gpu.models.interface import Entry, RewardModel
from arl_gpu.models.loader import load
from arl_gpu.parallel.tensor_sharding import plan_shards
from arl_gpu.queue.score_jobs import ScoreReport
from support.conditions import eventually
from support.parallel import LIMIT_S, Node, a_node, wish
from support.tiny_models import SIZE, a_large_one, save

TOLERANCE = 1e-5
"""Absolute tolerance of float32 scores: sums over ranks are added in another order."""
TOKENS = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16], [5, 6, 7, 8, 9], [20, 21, 22, 23]]
ITEMS = [{"token_ids": ids} for ids in TOKENS]
KINDS = {"reward": "sequence-classifier", "teacher": "logprobs", "large": "logprobs", "bert": "sequence-classifier"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    llama, qwen = transformers.LlamaConfig, transformers.Qwen3Config
    biased = llama(**SIZE, attention_bias=True, mlp_bias=True, num_labels=1)
    save(directory / "reward", transformers.LlamaForSequenceClassification(biased), seed=1)
    save(directory / "teacher", transformers.Qwen3ForCausalLM(qwen(**SIZE, head_dim=8)), seed=2)
    save(directory / "large", a_large_one(), seed=3)
    middle = a_large_one()
    middle.model.layers = middle.model.layers[:1]
    middle.config.num_hidden_layers = 1
    save(directory / "middle", middle, seed=5)
    bert = transformers.BertConfig(**SIZE | {"num_labels": 1})
    save(directory / "bert", transformers.BertForSequenceClassification(bert), seed=4)
    return directory


FAILING = """
import os, pathlib
from arl_gpu.parallel import collective
told, really_add, really_leave = pathlib.Path({told!r}), collective.all_reduce_sum, collective.RankGroup.leave
def add(tensor):
    if told.read_text().startswith(f"{{os.getpid()}} "):
        raise ValueError("made to fail by the test")
    return really_add(tensor)
def leave(ranks):
    if told.read_text() != f"{{os.getpid()}} stays":
        really_leave(ranks)
collective.all_reduce_sum, collective.RankGroup.leave = add, leave
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file that names the worker whose forwards fail, and how they fail."""
    path = tmp_path_factory.mktemp("told") / "told"
    path.write_text("")
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(models: Path, told: Path) -> AsyncIterator[Node]:
    """Yield a node with two devices, each with room for half of the large model and a small model."""
    async with a_node(models, 2, device_mib=6, before=FAILING.format(told=str(told))) as node:
        yield node


def model_of(models: Path, source: str) -> RewardModel:
    return load({"kind": KINDS[source], "directory": str(models / source), "options": {}})


def whole(models: Path, source: str) -> list[Entry]:
    model = model_of(models, source)
    return model.score(ITEMS, model.weights.content).entries


def entries(report: ScoreReport) -> list[Entry]:
    assert report.outcome == "ok", report
    found: list[Entry] = json.loads(report.scores or "")
    return found


def assert_alike(found: Sequence[Entry], wanted: Sequence[Entry]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=TOLERANCE)
        assert one.get("logprobs", [])[1:] == pytest.approx(other.get("logprobs", [])[1:], abs=TOLERANCE)


@pytest.mark.parametrize("source", ["reward", "teacher"])
async def test_two_devices_give_scores_of_the_whole_model(pair: Node, models: Path, source: str) -> None:
    await pair.offer(wish("it", KINDS[source], source, tensor_parallel=2))
    assert_alike(entries(await pair.scored("it", ITEMS)), whole(models, source))
    sizes = [device.used_bytes for device in pair.scoring._devices]
    assert all(0 < size < 0.7 * len(model_of(models, source).weights.content) for size in sizes), "each has one part"


async def test_model_too_large_for_one_device_is_scored_by_two(pair: Node, models: Path) -> None:
    await pair.offer(wish("alone", "logprobs", "large"), wish("it", "logprobs", "large", tensor_parallel=2))
    report = await pair.scored("alone", ITEMS)
    assert (report.outcome, report.reason) == ("infra_error", "no_room")
    assert_alike(entries(await pair.scored("it", ITEMS)), whole(models, "large"))


async def test_tensor_parallel_workers_listen_only_on_localhost(pair: Node, models: Path) -> None:
    await pair.offer(wish("it", "logprobs", "teacher", tensor_parallel=2))
    entries(await pair.scored("it", ITEMS))
    listening = [address for worker in pair.workers for address in listening_of(worker.pid)]
    assert listening
    assert set(listening) == {"0100007F"}


async def test_rank_without_room_fails_batch_and_both_workers_continue(pair: Node, models: Path) -> None:
    await pair.offer(wish("it", "logprobs", "large", tensor_parallel=2))
    assert_alike(entries(await pair.scored("it", ITEMS)), whole(models, "large"))
    pids, there = [worker.pid for worker in pair.workers], pair.workers[1]
    await there.offer({"name": "beside", "kind": "logprobs", "directory": str(models / "middle"), "options": {}})
    await there.pin("beside", on=True)
    await there.restore("beside")
    report = await pair.scored("it", ITEMS)
    assert (report.outcome, report.reason) == ("infra_error", "no_room")
    await there.forget("beside")
    assert_alike(entries(await pair.scored("it", ITEMS)), whole(models, "large"))
    assert [worker.pid for worker in pair.workers] == pids


@pytest.mark.parametrize("how", ["leaves", "stays"])
async def test_rank_failing_during_forward_fails_only_its_batch(
    pair: Node, models: Path, told: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the failed rank stays connected, the other rank waits and is then ended."""
    await pair.offer(wish("it", "logprobs", "teacher", tensor_parallel=2))
    entries(await pair.scored("it", ITEMS))
    first, second = (worker.pid for worker in pair.workers)
    if how == "stays":
        monkeypatch.setattr(pair.groups, "_grace_s", 0.1)
    told.write_text(f"{second} {how}")
    report = await pair.scored("it", ITEMS)
    told.write_text("")
    assert report.reason == ("forward_failed" if how == "leaves" else "worker_died")
    assert [worker.pid for worker in pair.workers] == [first if how == "leaves" else None, second]
    monkeypatch.undo()
    assert_alike(entries(await pair.scored("it", ITEMS)), whole(models, "teacher"))


async def test_parts_of_different_registrations_never_form_a_score(pair: Node, models: Path) -> None:
    """The first worker already has the new registration and the second worker does not."""
    old = wish("it", "logprobs", "teacher", tensor_parallel=2)
    await pair.offer(old)
    entries(await pair.scored("it", ITEMS))
    open_before = files_open(pair)
    files = pair.registry.offered[0]
    await pair.workers[0].offer(replace(files, registered_at=2.0).spec_for_device(0))
    report = await pair.scored("it", ITEMS)
    assert (report.outcome, report.reason) == ("infra_error", "peer_not_ready")
    await pair.workers[0].offer(files.spec_for_device(1))
    assert (await pair.scored("it", ITEMS)).reason == "peer_not_ready", "the same rank was offered twice"
    await pair.workers[0].offer(files.spec_for_device(0))
    assert_alike(entries(await pair.scored("it", ITEMS)), whole(models, "teacher"))
    assert files_open(pair) == open_before


async def test_model_type_without_split_plan_is_refused_with_advice(pair: Node, models: Path) -> None:
    await pair.offer(wish("it", "sequence-classifier", "bert", tensor_parallel=2))
    assert pair.registry.offered == []
    sentence = "models of type bert cannot be sharded: register the service without"
    assert pair.registry.health["it"].startswith(f"not_split: {sentence}")


@pytest.mark.parametrize("changed", [{"model_type": "nobody-knows"}, {"quantization_config": {"quant_method": "fp8"}}])
async def test_unknown_or_quantised_model_is_refused_by_running_workers(
    pair: Node, models: Path, changed: dict[str, object]
) -> None:
    shutil.copytree(models / "teacher", models / "strange", dirs_exist_ok=True)
    config = json.loads((models / "strange" / "config.json").read_text())
    (models / "strange" / "config.json").write_text(json.dumps(config | changed))
    await pair.offer(wish("teacher", "logprobs", "teacher"))
    for worker in pair.workers:
        await worker.restore("teacher")
    await pair.offer(wish("it", "logprobs", "strange", tensor_parallel=2))
    assert (pair.registry.offered, [each.name for each in pair.registry.refused]) == ([], ["it"])
    assert pair.registry.health["it"].startswith("not_split")


def test_untested_model_type_is_refused_despite_its_split_plan() -> None:
    sparse = {"activation_sparsity_pattern": [0.95, 0.0], "laurel_rank": 4, "num_kv_shared_layers": 0, "head_dim": 8}
    config = transformers.Gemma3nTextConfig(**SIZE | sparse)
    with torch.device("meta"):
        module = transformers.Gemma3nForCausalLM(config)
    with pytest.raises(ModelNotShardable, match="gemma3n_text"):
        plan_shards(module, 2)


async def test_parts_of_replaced_and_old_files_never_form_a_score(pair: Node, models: Path) -> None:
    shutil.copytree(models / "teacher", models / "replaced", dirs_exist_ok=True)
    await pair.offer(wish("it", "logprobs", "replaced", tensor_parallel=2))
    before = entries(await pair.scored("it", ITEMS))
    qwen = transformers.Qwen3Config(**SIZE, head_dim=8)
    save(models / "replaced", transformers.Qwen3ForCausalLM(qwen), seed=9)
    pid = pair.workers[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    reasons = []
    while (report := await pair.scored("it", ITEMS)).outcome != "ok":
        reasons.append(report.reason)
        assert len(reasons) < 4
    assert {*reasons} <= {"worker_died", "peer_not_ready"}
    model = load({"kind": "logprobs", "directory": str(models / "replaced"), "options": {}})
    assert_alike(entries(report), model.score(ITEMS, model.weights.content).entries)
    assert entries(report)[0]["score"] != pytest.approx(before[0]["score"], abs=1e-3)


async def test_killed_or_hanging_rank_fails_only_its_batch(
    pair: Node, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.offer(wish("it", "logprobs", "teacher", tensor_parallel=2))
    wanted = whole(models, "teacher")
    assert_alike(entries(await pair.scored("it", ITEMS)), wanted)
    first, second = (worker.pid for worker in pair.workers)
    assert second is not None
    os.kill(second, signal.SIGSTOP)
    going = asyncio.create_task(pair.scored("it", ITEMS))
    await eventually(lambda: pair.workers[1].order_lock.locked())
    os.kill(second, signal.SIGKILL)
    assert (await going).reason == "worker_died"
    assert_alike(entries(await pair.scored("it", ITEMS)), wanted)
    assert pair.workers[0].pid == first, "the first worker must detect the failure and keep running"
    for worker in pair.workers:
        monkeypatch.setattr(worker, "_limit_s", 1.0)
    assert pair.workers[1].pid is not None
    os.kill(pair.workers[1].pid, signal.SIGSTOP)
    assert (await pair.scored("it", ITEMS)).reason == "worker_died"
    for worker in pair.workers:
        monkeypatch.setattr(worker, "_limit_s", LIMIT_S)
    assert_alike(entries(await pair.scored("it", ITEMS)), wanted)


async def test_split_and_whole_services_share_small_devices_correctly(models: Path) -> None:
    """Workers are also killed: each report is correct or says that a worker died."""
    rng = random.Random(5)
    splits = {"one": 1, "two": 2, "four": 4}
    wishes = [
        wish(f"{source} {name}", KINDS[source], source, **({"tensor_parallel": parts} if parts > 1 else {}))
        for name, parts in splits.items()
        for source in ("reward", "teacher")
    ]
    wanted = {source: whole(models, source) for source in ("reward", "teacher")}
    processes = children()
    async with a_node(models, 4, device_mib=1) as node:
        await node.offer(*wishes)
        for kills in (0, 3):
            asked = [(rng.choice(wishes), rng.randrange(1, len(ITEMS) + 1)) for _ in range(30)]
            going = [asyncio.create_task(node.scored(each.name, ITEMS[:count])) for each, count in asked]
            for _ in range(kills):
                await asyncio.wait(rng.sample(going, 3), return_when=asyncio.FIRST_COMPLETED)
                if (pid := rng.choice(node.workers).pid) is not None:
                    os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(100):
                reports = await asyncio.gather(*going)
            for (each, count), report in zip(asked, reports, strict=True):
                if not kills or report.outcome == "ok":
                    assert_alike(entries(report), wanted[str(each.source)][:count])
                else:
                    assert report.reason == "worker_died"
    assert children() == processes


def listening_of(pid: int | None) -> list[str]:
    """Return the local addresses on which a process listens, in the kernel's format."""
    sockets = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return [line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def files_open(node: Node) -> list[int]:
    return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), *(worker.pid for worker in node.workers))]


def children() -> set[int]:
    return {int(pid) for each in Path("/proc/self/task").iterdir() for pid in (each / "children").read_text().split()}


async def test_split_models_evict_each_other_from_host_memory(models: Path) -> None:
    size = len(model_of(models, "large").weights.content)
    wanted = whole(models, "large")
    async with a_node(models, 2, device_mib=8, host_bytes=int(1.5 * size)) as node:
        await node.offer(*(wish(name, "logprobs", "large", tensor_parallel=2) for name in ("one", "two")))
        for name in ("one", "two", "one"):
            assert_alike(entries(await node.scored(name, ITEMS)), wanted)
            assert size < node.host.written_bytes <= 1.5 * size
        await node.offer(
            replace(wish("one", "logprobs", "large", tensor_parallel=2), pinned=True),
            wish("two", "logprobs", "large", tensor_parallel=2),
        )
        report = await node.scored("two", ITEMS)
        assert (report.outcome, report.reason) == ("infra_error", "no_room")
        assert_alike(entries(await node.scored("one", ITEMS)), wanted)


READ = """
import json, os, resource, sys
from functools import partial
from arl_gpu.models.weight_buffer import load_shared
from arl_gpu.models.loader import load
spec = json.loads(sys.argv[1])
load(spec | json.loads(sys.argv[2]))  # what the libraries themselves need is there now
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
files = os.path.getsize(spec["directory"] + "/model.safetensors")  # which the library maps so that they count
resource.setrlimit(resource.RLIMIT_DATA, (used + files + (int(sys.argv[3]) << 20), -1))
print(len(load(spec, partial(load_shared, f"/proc/self/fd/{os.memfd_create('weights')}")).weights.content) >> 20)
"""


@pytest.mark.parametrize(("rank", "mib"), [(None, 40), (1, 24)])
def test_shared_weights_are_loaded_without_a_second_copy(tmp_path: Path, rank: int | None, mib: int) -> None:
    config = transformers.LlamaConfig(**SIZE | {"hidden_size": 512, "intermediate_size": 2560, "vocab_size": 4096})
    save(tmp_path / "it", transformers.LlamaForCausalLM(config), seed=1)
    save(tmp_path / "small", transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE)), seed=1)
    options = {} if rank is None else {"tensor_parallel": 2, "rank": rank}
    spec = {"kind": "logprobs", "directory": str(tmp_path / "it"), "options": options}
    small = {"directory": str(tmp_path / "small")}
    argv = [sys.executable, "-c", READ, json.dumps(spec), json.dumps(small), str(mib // 3)]
    # The stacks of more threads would count as memory.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > mib, done
