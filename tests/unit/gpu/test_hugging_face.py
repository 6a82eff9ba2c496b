"""Tiny random models in the Hugging Face layout; results must equal those of the library."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from arl_gpu.catalog.service_files import IncompleteModel
from arl_gpu.models.forward_passes import ForwardPasses
from arl_gpu.models.interface import Entry, RewardModel
from arl_gpu.models.loader import load

TOLERANCE = 1e-5
"""Absolute tolerance of float32 results, batched here and computed item by item by the library."""
WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{number}" for number in range(60)))
TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12", "w1 w2 w3 w4 w5"]
TOKENS = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16], [5, 6, 7, 8, 9]]
SIZE = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
TEMPLATE = "{% for m in messages %}[CLS] {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("labels"), classifying(labels=3))


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("scalar"), classifying(labels=1))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SIZE, num_key_value_heads=1, tie_word_embeddings=True, pad_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(directory := tmp_path_factory.mktemp("teacher"))
    return directory


def test_checkpoint_without_required_head_is_refused(classifier: Path, teacher: Path, tmp_path: Path) -> None:
    transformers.AutoModel.from_pretrained(classifier).save_pretrained(tmp_path)
    for kind, directory, weight in (
        ("sequence-classifier", teacher, "score.weight"),
        ("sequence-classifier", tmp_path, "classifier.bias"),
        ("logprobs", classifier, "cls.predictions"),
    ):
        with pytest.raises(IncompleteModel, match=f"the files lack .*{weight}"):
            model_of(kind, directory)


def test_raw_logits_equal_those_of_the_library(classifier: Path) -> None:
    entries = scored(model_of("sequence-classifier", classifier), [{"text": text} for text in TEXTS])
    for entry, ids in zip(entries, encoded(classifier, TEXTS), strict=True):
        wanted = logits_of(transformers.AutoModelForSequenceClassification, classifier, ids)[0].tolist()
        assert entry["values"] == pytest.approx(wanted, abs=TOLERANCE)
        assert entry["score"] == entry["values"][-1]
        assert entry["details"]["label"] == f"LABEL_{wanted.index(max(wanted))}"


def test_activated_label_values_sum_to_one(classifier: Path) -> None:
    model = model_of("sequence-classifier", classifier, activation=True)
    for entry in scored(model, [{"text": text} for text in TEXTS]):
        assert sum(entry["values"]) == pytest.approx(1.0, abs=TOLERANCE)


def test_scalar_reward_is_independent_of_batch_and_weight_copy(reward: Path) -> None:
    model = model_of("sequence-classifier", reward)
    together = scored(model, [{"text": text} for text in TEXTS])
    elsewhere = memoryview(bytearray(model.weights.content))
    alone = [model.score([{"text": text}], elsewhere).entries[0] for text in TEXTS]
    assert [entry["score"] for entry in together] == pytest.approx([entry["score"] for entry in alone], abs=TOLERANCE)
    assert "values" not in together[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gpu_results_equal_cpu_results(classifier: Path, teacher: Path) -> None:
    """The tolerance is 1e-3: GPU kernels add in another order and may use TF32."""
    for kind, directory, items in (
        ("sequence-classifier", classifier, [{"text": text} for text in TEXTS]),
        ("logprobs", teacher, [{"token_ids": ids} for ids in TOKENS]),
    ):
        model = model_of(kind, directory)
        there = torch.frombuffer(bytearray(model.weights.content), dtype=torch.uint8).to("cuda")
        for here, far in zip(scored(model, items), model.score(items, there).entries, strict=True):
            assert far["score"] == pytest.approx(here["score"], abs=1e-3)


def test_scores_are_computed_from_the_passed_weights(reward: Path) -> None:
    model = model_of("sequence-classifier", reward)
    zeros = memoryview(bytearray(len(model.weights.content)))
    assert model.score([{"text": TEXTS[0]}], zeros).entries[0]["score"] == 0.0


def test_reranker_pair_puts_query_first(reward: Path) -> None:
    [entry] = scored(model_of("reranker", reward), [{"text": "w4 w5", "reference": "w1"}])
    ids = transformers.AutoTokenizer.from_pretrained(reward)("w1", "w4 w5")
    wanted = transformers.AutoModelForSequenceClassification.from_pretrained(reward).eval()
    with torch.inference_mode():
        logits = wanted(**{name: torch.tensor([value]) for name, value in ids.items()}).logits
    assert entry["score"] == pytest.approx(logits.item(), abs=TOLERANCE)


def test_messages_are_rendered_with_the_models_chat_template(reward: Path) -> None:
    model = model_of("sequence-classifier", reward)
    said = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]
    by_messages, by_tokens = scored(model, [{"messages": said}, {"token_ids": [1, 5, 6, 1, 7]}])
    assert by_messages["score"] == pytest.approx(by_tokens["score"], abs=TOLERANCE)


def test_truncated_text_is_marked_and_unreadable_item_fails_alone(reward: Path) -> None:
    model = model_of("sequence-classifier", reward, max_tokens=4)
    whole, cut, empty, unknown = scored(
        model, [{"text": "w1"}, {"text": TEXTS[2]}, {"text": " "}, {"token_ids": [1, 9999]}]
    )
    assert (whole["truncated"], cut["truncated"]) == (False, True)
    assert [each["error"]["code"] for each in (empty, unknown)] == ["empty_text", "token_unknown"]
    assert not any("score" in each for each in (empty, unknown))


def test_logprobs_are_conditioned_on_preceding_tokens(teacher: Path) -> None:
    entries = scored(model_of("logprobs", teacher), [{"token_ids": ids} for ids in TOKENS])
    for entry, ids in zip(entries, TOKENS, strict=True):
        logits = logits_of(transformers.AutoModelForCausalLM, teacher, ids)[0]
        wanted = [logits[at - 1].log_softmax(-1)[ids[at]].item() for at in range(1, len(ids))]
        first, *others = entry["logprobs"]
        assert (first, entry["token_ids"]) == (None, ids)
        assert others == pytest.approx(wanted, abs=TOLERANCE)
        assert entry["score"] == pytest.approx(sum(wanted), abs=1e-4)


def test_top_logprobs_and_ranks_cover_the_whole_distribution(teacher: Path) -> None:
    entries = scored(model_of("logprobs", teacher), [{"token_ids": ids, "top_logprobs": 3} for ids in TOKENS])
    for entry, ids in zip(entries, TOKENS, strict=True):
        rows = logits_of(transformers.AutoModelForCausalLM, teacher, ids)[0].log_softmax(-1)
        assert (entry["ranks"][0], entry["top_token_ids"][0], entry["top_logprobs"][0]) == (None, [], [])
        for at in range(1, len(ids)):
            order = rows[at - 1].argsort(descending=True).tolist()
            assert entry["ranks"][at] == order.index(ids[at]) + 1
            assert entry["top_token_ids"][at] == order[:3]
            assert entry["top_logprobs"][at] == pytest.approx(rows[at - 1][order[:3]].tolist(), abs=TOLERANCE)


def test_label_logprobs_are_those_of_the_next_token(teacher: Path) -> None:
    items = [{"token_ids": ids, "label_token_ids": [9, 4]} for ids in (*TOKENS, [5])]
    bad, *entries = scored(model_of("logprobs", teacher), [{"token_ids": [5], "label_token_ids": [64]}, *items])
    assert bad["error"]["code"] == "token_unknown"
    for entry, item in zip(entries, items, strict=True):
        row = logits_of(transformers.AutoModelForCausalLM, teacher, item["token_ids"])[0][-1].log_softmax(-1)
        assert entry["values"] == pytest.approx(row[[9, 4]].tolist(), abs=TOLERANCE)
        assert entry["score"] == entry["values"][0]


def test_tied_weights_are_stored_once(teacher: Path) -> None:
    content = model_of("logprobs", teacher).weights.content
    parameters = transformers.AutoModelForCausalLM.from_pretrained(teacher).num_parameters()
    assert 4 * parameters <= len(content) < 4 * parameters + 8192


def test_memory_shortage_splits_passes_and_fails_only_oversized_text(
    teacher: Path,
) -> None:
    items = [{"token_ids": ids} for ids in TOKENS]
    whole, model = scored(model_of("logprobs", teacher), items), model_of("logprobs", teacher)
    forward, passes = model.weights, list[int]()

    def with_room_for_six(content: Any, **arguments: Any) -> Any:
        passes.append(arguments["input_ids"].numel())
        if passes[-1] > 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(content, **arguments)  # type: ignore[operator]

    model.weights = with_room_for_six  # type: ignore[misc, assignment]
    found = model.score(items, forward.content).entries
    assert [each.get("score") for each in found] == pytest.approx(
        [None if len(ids) > 6 else entry["score"] for ids, entry in zip(TOKENS, whole, strict=True)], abs=TOLERANCE
    )
    assert [each["error"]["code"] for each in found if "error" in each] == ["out_of_memory"]
    assert "7 tokens" in found[2]["error"]["message"]
    assert passes == [4 * 7, 2 * 3, 2 * 7, 5, 7], "passes must be halves of the padded batch"


def test_text_with_token_unknown_to_model_is_item_error(tmp_path: Path) -> None:
    """The tokenizer has more tokens than the model. On a GPU such a lookup breaks all later computations."""
    smaller = transformers.BertConfig(**SIZE | {"vocab_size": len(WORDS) - 1}, num_labels=1)
    directory = saved(tmp_path, transformers.BertForSequenceClassification(smaller))
    bad, good = scored(model_of("sequence-classifier", directory), [{"text": f"w1 {WORDS[-1]}"}, {"text": "w1"}])
    assert bad["error"]["code"] == "token_unknown"
    assert "score" in good


def test_invalid_padding_token_is_ignored(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**SIZE, num_labels=1, pad_token_id=-1)
    directory = saved(tmp_path, transformers.LlamaForSequenceClassification(config))
    model = model_of("sequence-classifier", directory)
    together = [entry["score"] for entry in scored(model, [{"text": text} for text in TEXTS])]
    alone = [scored(model, [{"text": text}])[0]["score"] for text in TEXTS]
    assert together == pytest.approx(alone, abs=TOLERANCE)


def test_text_beyond_learnt_positions_is_truncated(reward: Path) -> None:
    model = model_of("sequence-classifier", reward, max_tokens=4096)
    tokens, text = scored(model, [{"token_ids": [5] * 100}, {"text": " ".join(["w1"] * 100)}])
    assert (tokens["truncated"], text["truncated"]) == (True, True)


def test_text_beyond_computed_positions_is_too_long(tmp_path: Path) -> None:
    config = transformers.GPTJConfig(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32, rotary_dim=4)
    transformers.GPTJForCausalLM(config).save_pretrained(tmp_path)
    assert scored(model_of("logprobs", tmp_path), [{"token_ids": [5] * 60}])[0]["error"]["code"] == "too_long"


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rope_scaled_by_length_scores_each_text_independently(rope_type: str, tmp_path: Path) -> None:
    rope: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 10_000.0, "factor": 2.0}
    size = SIZE | {"max_position_embeddings": 32}
    if rope_type == "longrope":
        factors = SIZE["hidden_size"] // SIZE["num_attention_heads"] // 2
        rope |= {"short_factor": [1.0] * factors, "long_factor": [2.0] * factors}
        rope["original_max_position_embeddings"] = 32
        size |= {"max_position_embeddings": 64}
    torch.manual_seed(4)
    config = transformers.LlamaConfig(**size, rope_parameters=rope, initializer_range=0.3)
    directory = saved(tmp_path, transformers.LlamaForCausalLM(config))
    texts = [[4 + number % 60 for number in range(length)] for length in (30, 34, 36, 36)]
    right = [library_score(directory, ids) for ids in texts]
    model = model_of("logprobs", directory, max_tokens=64)
    before = bytes(model.weights.content)
    for _ in range(2):
        together = [entry["score"] for entry in scored(model, [{"token_ids": ids} for ids in texts])]
        assert together == pytest.approx(right, abs=1e-4)
    assert bytes(model.weights.content) == before, "other workers read the same bytes"


def library_score(directory: Path, ids: list[int]) -> float:
    """Return the score by a model that has computed no other text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return float(logprobs.gather(1, torch.tensor(ids)[1:, None]).sum())


def test_forward_keeps_no_key_value_cache(teacher: Path) -> None:
    model = model_of("logprobs", teacher)
    found = model.weights(model.weights.content, input_ids=torch.tensor([TOKENS[0]]))  # type: ignore[operator]
    assert found.past_key_values is None


def test_torch_cpu_memory_error_is_recognised() -> None:
    passes = ForwardPasses(cpu_tokens=64, parameters=1)
    found = passes.compute_groups([[0]], [1], lambda group: [torch.empty(1 << 60)], on_too_large=lambda at: None)
    assert found == {0: None}


def test_cuda_kernel_memory_error_leads_to_smaller_passes() -> None:
    def compute(group: Sequence[int]) -> list[int]:
        if len(group) > 1:
            raise RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions.")
        return list(group)

    passes = ForwardPasses(cpu_tokens=64, parameters=1)
    assert passes.compute_groups([[0, 1, 2]], [1, 1, 1], compute) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize(("ids", "code"), [([5], "too_short"), ([5] * 40, "too_long"), ([5, 64], "token_unknown")])
def test_token_ids_without_valid_logprobs_are_item_errors(teacher: Path, ids: list[int], code: str) -> None:
    bad, good = scored(model_of("logprobs", teacher), [{"token_ids": ids}, {"token_ids": TOKENS[0]}])
    assert bad["error"]["code"] == code
    assert len(good["logprobs"]) == 3


def classifying(*, labels: int) -> Any:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZE, num_labels=labels))


def saved(directory: Path, model: Any) -> Path:
    model.save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    return directory


def model_of(kind: str, directory: Path, **options: Any) -> RewardModel:
    return load({"name": "it", "kind": kind, "directory": str(directory), "options": options})


def scored(model: RewardModel, items: Sequence[dict[str, Any]]) -> list[Entry]:
    return model.score(items, model.weights.content).entries


def encoded(directory: Path, texts: Sequence[str]) -> list[list[int]]:
    return [transformers.AutoTokenizer.from_pretrained(directory)(text)["input_ids"] for text in texts]


def logits_of(auto: Any, directory: Path, ids: list[int]) -> Any:
    with torch.inference_mode():
        return auto.from_pretrained(directory).eval()(torch.tensor([ids])).logits
