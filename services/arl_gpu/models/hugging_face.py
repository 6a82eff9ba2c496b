"""Hugging Face models from local files: classifiers, scalar rewards, rerankers and log-probabilities."""

import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from arl_core.control.batching import padding_share
from arl_gpu.catalog.service_files import IncompleteModel, ModelNotShardable, files_fingerprint, max_item_tokens
from arl_gpu.models.flat_module import FlatModule
from arl_gpu.models.forward_passes import MAX_PADDING, ForwardPasses
from arl_gpu.models.interface import Entry, Item, ModelOutput, error_entry
from arl_gpu.models.position_limits import max_positions, reset_rope_lengths, rope_limit
from arl_wire.scores import MAX_TOP_LOGPROB_ENTRIES

__all__ = ["LogprobsModel", "SequenceClassifier", "check_tensor_parallel"]

MAX_CPU_PASS_TOKENS = 2048
"""Maximum tokens of a pass on a CPU."""
LOCAL_ONLY = {"local_files_only": True, "trust_remote_code": False}
MAX_SHOWN_NAMES = 3
"""Maximum names of weights in an error message."""
POSITIONS_PER_CHUNK = 256
"""Positions of one row whose logits are converted to float32 at a time."""

TokenIds = list[int]

# Progress bars and tables on standard error are no log lines; errors are raised below.
transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()


@dataclass(frozen=True, slots=True)
class _ModelInput:
    """The input of a forward for one item."""

    ids: TokenIds
    token_type_ids: TokenIds | None = None
    truncated: bool = False
    top_logprobs: int = 0
    """Number of most likely tokens whose log-probabilities are returned."""
    label_token_ids: Sequence[int] = ()
    """Tokens whose log-probabilities as the next token are returned; no others are."""


class _HuggingFaceModel:
    """A base class: tokenized items, length-bucketed passes, entries. Code in a checkpoint is never executed."""

    backend = "torch"

    def __init__(self, directory: Path, options: Mapping[str, Any], loader: Any) -> None:
        dtype = getattr(torch, options["dtype"]) if options.get("dtype") else "auto"
        self.made_of = files_fingerprint(directory)
        module = _load_module(loader, directory, dtype)
        self._directory, self._config = directory, module.config
        asked = int(options.get("max_tokens") or max_item_tokens(module.config.to_dict()))
        self._max_tokens = min(asked, max_positions(module))
        self._rope_limit = rope_limit(module.config.get_text_config())
        words = module.get_input_embeddings().weight.shape[0]
        self._vocabulary = min(words, int(module.config.get_text_config().vocab_size))
        for config in (module.config, module.config.get_text_config()):
            config.use_cache = False  # the cache of keys and values only serves generation
        size = int(options.get("tensor_parallel") or 1)
        self._passes = ForwardPasses(
            cpu_tokens=MAX_CPU_PASS_TOKENS,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            output_bytes=self._vocabulary * module.dtype.itemsize if loader is AutoModelForCausalLM else 1,
            is_sharded=size > 1,
        )
        if size > 1:
            _shard_module(module, rank=options["rank"], size=size)
        self.weights = FlatModule(module)

    def score(self, items: Sequence[Item], content: Any) -> ModelOutput:
        """Score items. Padding and batch composition change a result only by float rounding: 1e-5 in float32."""
        reads = [self._check_vocabulary(self._prepare_item(item)) for item in items]
        wanted = [read for read in reads if isinstance(read, _ModelInput)]
        lengths = [len(read.ids) for read in wanted]
        grouped = self._group_passes(lengths, content)
        begun, cpu = time.monotonic(), time.process_time()

        def entries_of(group: Sequence[int]) -> Iterator[Entry]:
            """Yield the entries of a group of texts."""
            return self._entries([wanted[at] for at in group], content)

        def too_large(at: int) -> Entry:
            """Return the error entry of a text that is too large."""
            return error_entry(
                "out_of_memory", f"{lengths[at]} tokens need more memory than the device has in addition to the weights"
            )

        found = self._passes.compute_groups(grouped, lengths, entries_of, on_too_large=too_large)
        took, used = time.monotonic() - begun, time.process_time() - cpu
        computed = iter(found[at] for at in range(len(wanted)))
        entries = [next(computed) if isinstance(read, _ModelInput) else read for read in reads]
        return ModelOutput(entries, len(wanted), sum(lengths), padding_share(lengths, grouped), used, took)

    def _prepare_item(self, item: Item) -> "_ModelInput | Entry":
        raise NotImplementedError

    def _entries(self, inputs: Sequence[_ModelInput], content: Any) -> Iterator[Entry]:
        raise NotImplementedError

    @cached_property
    def _tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._directory, **LOCAL_ONLY)

    @property
    def _pad_token_id(self) -> int | None:
        """Id of the padding token; None if it is outside the vocabulary, such as -1."""
        pad: int | None = self._config.pad_token_id
        return pad if pad is not None and 0 <= pad < self._vocabulary else None

    def _group_passes(self, lengths: Sequence[int], content: Any) -> list[list[int]]:
        """Group texts into passes. A model without a padding token gets texts of one length in a pass.

        So do texts whose rotary positions depend on the length of their pass.
        """
        padding = MAX_PADDING if self._pad_token_id is not None else 0.0
        short = [at for at, length in enumerate(lengths) if length <= self._rope_limit]
        long = [at for at, length in enumerate(lengths) if length > self._rope_limit]
        return [
            [texts[at] for at in group]
            for texts, max_padding in ((short, padding), (long, 0.0))
            for group in self._passes.group_texts([lengths[at] for at in texts], content, max_padding=max_padding)
        ]

    def _logits(self, inputs: Sequence[_ModelInput], content: Any) -> tuple[Any, Any]:
        """Return the padded logits and token ids, on the device of the weights."""
        device = content.device if isinstance(content, torch.Tensor) else "cpu"
        width, pad = max(len(read.ids) for read in inputs), self._pad_token_id or 0

        def padded(rows: Sequence[TokenIds], value: int) -> Any:
            """Return rows of equal length as a tensor on the device."""
            return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], device=device)

        given = {
            "input_ids": padded([read.ids for read in inputs], pad),
            "attention_mask": padded([[1] * len(read.ids) for read in inputs], 0),
        }
        types = [read.token_type_ids for read in inputs if read.token_type_ids is not None]
        if len(types) == len(inputs):
            given["token_type_ids"] = padded(types, 0)
        if self._rope_limit < sys.maxsize:
            reset_rope_lengths(self.weights.module)
        return self.weights(content, **given).logits, given["input_ids"]

    def _check_vocabulary(self, prepared: "_ModelInput | Entry") -> "_ModelInput | Entry":
        """Return an error if a token is outside the vocabulary: a GPU is unusable after such a lookup.

        A tokenizer can have tokens that were never added to the model.
        """
        if not isinstance(prepared, _ModelInput):
            return prepared
        if not prepared.ids:
            return error_entry("empty_text", "the text has no tokens, so it cannot be scored")
        unknown = max(*prepared.ids, *prepared.label_token_ids, 0)
        if unknown < self._vocabulary:
            return prepared
        return error_entry(
            "token_unknown", f"token {unknown} is outside the model's vocabulary of {self._vocabulary} tokens"
        )


def _load_module(loader: Any, directory: Path, dtype: Any) -> Any:
    """Load the module. Raises `IncompleteModel` if the checkpoint lacks weights, such as the head of another task.

    The library would initialise them at random at each load.
    """
    module, loaded = loader.from_pretrained(
        directory, dtype=dtype, use_safetensors=True, output_loading_info=True, **LOCAL_ONLY
    )
    if missing := sorted(loaded["missing_keys"]):
        made = ", ".join(module.config.architectures or ()) or "an unnamed architecture"
        some = ", ".join(missing[:MAX_SHOWN_NAMES]) + (" and others" if len(missing) > MAX_SHOWN_NAMES else "")
        raise IncompleteModel(f"the files lack {some}, which a {type(module).__name__} needs; they contain {made}")
    return module


def check_tensor_parallel(spec: Mapping[str, Any]) -> None:
    """Check by its configuration that `options.tensor_parallel` devices can compute a model together.

    Raises:
        arl_gpu.catalog.service_files.ModelNotShardable: They cannot.
    """
    from arl_gpu.parallel.tensor_sharding import plan_shards

    loader = AutoModelForCausalLM if spec["kind"] == "logprobs" else AutoModelForSequenceClassification
    try:
        config = AutoConfig.from_pretrained(spec["directory"], **LOCAL_ONLY)
        with torch.device("meta"):
            module = loader.from_config(config)
    except Exception as error:  # the library raises many classes for unknown models
        raise ModelNotShardable(f"transformers cannot create the model: {type(error).__name__}: {error}") from error
    plan_shards(module, int(spec["options"]["tensor_parallel"]))


def _shard_module(module: Any, *, rank: int, size: int) -> None:
    """Shard the module. Raises `arl_gpu.catalog.service_files.ModelNotShardable`."""
    from arl_gpu.parallel.collective import all_reduce_sum  # some builds of torch lack it
    from arl_gpu.parallel.tensor_sharding import shard_module

    shard_module(module, rank=rank, size=size, all_reduce=all_reduce_sum)


class SequenceClassifier(_HuggingFaceModel):
    """A sequence classifier, a scalar reward head, or a cross-encoder of pairs.

    The score is the raw logit, or with `activation` a probability. With several labels it is that of the last one, and
    `values` has all of them.
    """

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        super().__init__(directory, options, AutoModelForSequenceClassification)
        self._activation = bool(options.get("activation"))

    def _prepare_item(self, item: Item) -> "_ModelInput | Entry":
        if "token_ids" in item:
            return self._truncate(list(item["token_ids"]))
        if "messages" in item:
            return self._prepare_messages(item["messages"])
        for name in ("text", "reference"):
            if name in item and not item[name].strip():
                return error_entry(f"empty_{name}", f"{name} has no words, so it cannot be scored")
        # A cross-encoder reads the query first.
        given = (item["reference"], item["text"]) if "reference" in item else (item["text"],)
        whole = len(self._tokenizer(*given)["input_ids"])
        said = self._tokenizer(*given, truncation=True, max_length=self._max_tokens)
        return _ModelInput(said["input_ids"], said.get("token_type_ids"), truncated=whole > len(said["input_ids"]))

    def _group_passes(self, lengths: Sequence[int], content: Any) -> list[list[int]]:
        """Group texts into passes of one row if the padding token is unknown.

        transformers finds the last token of a causal model by its padding, and otherwise accepts one row only.
        """
        return (
            super()._group_passes(lengths, content)
            if self._pad_token_id is not None
            else [[at] for at in range(len(lengths))]
        )

    def _prepare_messages(self, messages: Sequence[Mapping[str, str]]) -> "_ModelInput | Entry":
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False)
        except Exception as error:  # noqa: BLE001 - templates raise various errors, for example for an order of roles
            return error_entry("no_chat_template", f"the model's chat template does not accept these messages: {error}")
        # The template writes special tokens itself.
        return self._truncate(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _truncate(self, ids: TokenIds) -> _ModelInput:
        return _ModelInput(ids[: self._max_tokens], truncated=len(ids) > self._max_tokens)

    def _entries(self, inputs: Sequence[_ModelInput], content: Any) -> Iterator[Entry]:
        logits = self._logits(inputs, content)[0].float()
        if self._activation:
            logits = logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)
        for read, values in zip(inputs, logits.tolist(), strict=True):
            yield self._entry(values, read)

    def _entry(self, values: list[float], read: _ModelInput) -> Entry:
        if not all(map(math.isfinite, values)):
            return error_entry("not_finite", "the model's output is not a finite number")
        entry: Entry = {"score": values[-1], "truncated": read.truncated}
        if len(values) > 1:
            label = self._config.id2label.get(values.index(max(values)))
            entry |= {"values": values, "details": {"label": label}}
        return entry


class LogprobsModel(_HuggingFaceModel):
    """A model of log-probabilities: `logprobs[i]` is that of token i given the tokens before it; their sum is the
    score.

    The first token has none. With labels, `values` are their log-probabilities as the next token, and the first label's
    is the score.
    """

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        super().__init__(directory, options, AutoModelForCausalLM)

    @property
    def _pad_token_id(self) -> int:
        """Id of the padding token; any id works, because later tokens do not change a token's result."""
        return 0

    def _prepare_item(self, item: Item) -> "_ModelInput | Entry":
        ids = list(item["token_ids"]) if "token_ids" in item else self._tokenizer(str(item["text"]))["input_ids"]
        labels, top = item.get("label_token_ids", ()), item.get("top_logprobs", 0)
        if len(ids) < (1 if labels else 2):
            return error_entry("too_short", "a single token has no preceding token, so it has no probability")
        if len(ids) > self._max_tokens:
            return error_entry(
                "too_long", f"the text has {len(ids)} tokens; the model accepts at most {self._max_tokens}"
            )
        if len(ids) * top > MAX_TOP_LOGPROB_ENTRIES:
            return error_entry(
                "too_many",
                f"top_logprobs {top} of {len(ids)} tokens is too much; an item may have at most"
                f" {MAX_TOP_LOGPROB_ENTRIES} in total",
            )
        return _ModelInput(ids, top_logprobs=min(top, self._vocabulary), label_token_ids=labels)

    def _entries(self, inputs: Sequence[_ModelInput], content: Any) -> Iterator[Entry]:
        logits, ids = self._logits(inputs, content)
        # Convert all texts at once: each transfer of results stalls the GPU.
        logprobs = _to_lists(
            [
                _token_logprobs(row, row_ids[: len(read.ids)])
                for read, row, row_ids in zip(inputs, logits, ids, strict=True)
                if not (read.label_token_ids or read.top_logprobs)
            ]
        )
        for read, row, row_ids in zip(inputs, logits, ids, strict=True):
            if read.label_token_ids:
                entry = self._score_labels(read, row)
            elif read.top_logprobs:
                entry = self._score_top_logprobs(read, row, row_ids[: len(read.ids)])
            else:
                entry = _with_logprobs(read, next(logprobs))
            rows = (
                [entry["values"]] if read.label_token_ids else [entry["logprobs"][1:], *entry.get("top_logprobs", ())]
            )
            is_finite = all(math.isfinite(number) for row in rows for number in row)
            yield entry if is_finite else error_entry("not_finite", "the model's output is not a finite number")

    def _score_labels(self, read: _ModelInput, logits: Any) -> Entry:
        last = logits[len(read.ids) - 1].float()
        values = (last[list(read.label_token_ids)] - last.logsumexp(-1)).tolist()
        return {"score": values[0], "values": values}

    def _score_top_logprobs(self, read: _ModelInput, logits: Any, ids: Any) -> Entry:
        """Return the log-probabilities with ranks, and the most likely tokens at each position."""
        found: list[float] = []
        ranks: list[int | None] = [None]
        tokens: list[TokenIds] = [[]]
        tops: list[list[float]] = [[]]
        for part, wanted in _position_chunks(logits, ids[1:]):
            those, norm = part.gather(1, wanted[:, None]), part.logsumexp(-1, keepdim=True)
            best = part.topk(read.top_logprobs, dim=-1)
            found += (those - norm)[:, 0].tolist()
            ranks += ((part > those).sum(-1) + 1).tolist()
            tokens += best.indices.tolist()
            tops += (best.values - norm).tolist()
        return _with_logprobs(read, found) | {"ranks": ranks, "top_token_ids": tokens, "top_logprobs": tops}


def _with_logprobs(read: _ModelInput, found: list[float]) -> Entry:
    return {"score": math.fsum(found), "token_ids": read.ids, "logprobs": [None, *found]}


def _token_logprobs(logits: Any, ids: Any) -> Any:
    """Return the log-probability of each of `ids` except the first, given the ids before it, as a device tensor."""
    parts = [
        (part.gather(1, wanted[:, None]) - part.logsumexp(-1, keepdim=True))[:, 0]
        for part, wanted in _position_chunks(logits, ids[1:])
    ]
    return torch.cat(parts)


def _position_chunks(logits: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
    """Yield chunks of logits in float32, each with the tokens that follow its positions."""
    for start in range(0, len(targets), POSITIONS_PER_CHUNK):
        wanted = targets[start : start + POSITIONS_PER_CHUNK]
        yield logits[start : start + len(wanted)].float(), wanted


def _to_lists(tensors: Sequence[Any]) -> Iterator[list[float]]:
    """Return the numbers of each tensor, with one transfer from the device."""
    numbers = iter(torch.cat([*tensors]).tolist() if tensors else [])
    return (list(itertools.islice(numbers, len(each))) for each in tensors)
