"""Examples of responses of the compatible protocols in the OpenAPI document, by operation id."""

from collections.abc import Mapping
from typing import Any

__all__ = ["RESPONSE_EXAMPLES"]

_USAGE = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}
_MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is Paris."}]}
_QUESTION = {"role": "user", "content": "What is the capital of France?"}
_LIST = {"object": "list", "created": 1772442000, "model": "rm"}
_PROXIED = {"results": [{"title": "Paris", "url": "https://example.com/paris"}]}
_PROXY_OPERATIONS = tuple(
    f"proxy_{method}{suffix}"
    for method in ("get", "head", "post", "put", "patch", "delete")
    for suffix in ("", "_root")
)


def _example(summary: str, value: Any) -> dict[str, Any]:
    return {"example": {"summary": summary, "value": value}}


RESPONSE_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "openrlhf_get_reward": _example(
        "One reward", {"rewards": [0.93], "scores": [0.93], "extra_logs": {"truncated": [0.0]}}
    ),
    "slime_reward": _example("A reward", 0.93),
    "sglang_generate": _example(
        "Log-probabilities of four tokens",
        {
            "text": "",
            "output_ids": [],
            "meta_info": {
                "finish_reason": {"type": "length", "length": 0},
                "prompt_tokens": 4,
                "completion_tokens": 0,
                "cached_tokens": 0,
                "input_token_logprobs": [[None, 785, None], [-4.1, 6722, None], [-0.2, 315, None], [-1.7, 9625, None]],
                "output_token_logprobs": [],
            },
        },
    ),
    "vllm_classify": _example(
        "A scalar reward",
        {
            **_LIST,
            "id": "classify-1",
            "data": [{"index": 0, "label": "LABEL_0", "probs": [2.31], "num_classes": 1}],
            "usage": _USAGE,
        },
    ),
    "vllm_pooling": _example(
        "The output of the head",
        {**_LIST, "id": "pool-1", "data": [{"index": 0, "object": "pooling", "data": [2.31]}], "usage": _USAGE},
    ),
    "openai_embeddings": _example(
        "A score as an embedding",
        {**_LIST, "id": "embd-1", "data": [{"index": 0, "object": "embedding", "embedding": [2.31]}], "usage": _USAGE},
    ),
    "vllm_score": _example(
        "Two scores",
        {
            **_LIST,
            "id": "score-1",
            "data": [{"index": 0, "object": "score", "score": 0.93}, {"index": 1, "object": "score", "score": 0.41}],
            "usage": _USAGE,
        },
    ),
    "vllm_rerank": _example(
        "The best document",
        {
            "id": "rerank-1",
            "model": "reranker",
            "usage": _USAGE,
            "results": [{"index": 0, "document": {"text": "It is Paris."}, "relevance_score": 0.93}],
        },
    ),
    "openai_chat": _example(
        "The answer of a judge",
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1772442000,
            "model": "judge",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "verdict: right"},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 21, "completion_tokens": 4, "total_tokens": 25},
        },
    ),
    "openai_completions": _example(
        "Log-probabilities of two tokens",
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1772442000,
            "model": "teacher",
            "choices": [
                {
                    "index": 0,
                    "text": "",
                    "logprobs": None,
                    "finish_reason": "length",
                    "stop_reason": None,
                    "prompt_logprobs": [None, {"6722": {"logprob": -4.1, "rank": 3, "decoded_token": None}}],
                }
            ],
            "usage": {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2},
        },
    ),
    "openai_models": _example(
        "One model",
        {
            "object": "list",
            "data": [{"id": "helpfulness", "object": "model", "created": 0, "owned_by": "tangram"}],
        },
    ),
    "nemo_gym_seed_session": _example("An empty object", {}),
    "nemo_gym_verify": _example(
        "The rollout with its reward",
        {
            "responses_create_params": {"input": [_QUESTION]},
            "response": {"output": [_MESSAGE]},
            "expected_answer": "Paris",
            "reward": 1.0,
        },
    ),
    "sandbox_fusion_run_code": _example(
        "A program that succeeded",
        {
            "status": "Success",
            "message": "",
            "run_result": {
                "status": "Finished",
                "execution_time": 0.04,
                "return_code": 0,
                "stdout": "42\n",
                "stderr": "",
            },
            "compile_result": None,
            "executor_pod_name": "node-1",
            "files": {},
        },
    ),
    "swerex_is_alive": _example("A live environment", {"is_alive": True, "message": ""}),
    "swerex_create_session": _example("A new session", {"output": "", "session_type": "bash"}),
    "swerex_run_in_session": _example(
        "A command that succeeded",
        {
            "output": "3 passed in 0.21s\n",
            "exit_code": 0,
            "failure_reason": "",
            "expect_string": "SHELLPS1PREFIX",
            "session_type": "bash",
        },
    ),
    "swerex_close_session": _example("A closed session", {"session_type": "bash"}),
    "swerex_execute": _example("A program that succeeded", {"stdout": "42\n", "stderr": "", "exit_code": 0}),
    "swerex_read_file": _example("A text file", {"content": "echo ran\n"}),
    "swerex_write_file": _example("An empty object", {}),
    "swerex_upload": _example("An empty object", {}),
    "swerex_close": _example("An empty object", {}),
    **{operation: _example("A response of the endpoint", _PROXIED) for operation in _PROXY_OPERATIONS},
}
