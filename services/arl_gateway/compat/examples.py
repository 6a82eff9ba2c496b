"""Examples in the OpenAPI document for bodies of the compatible protocols, by operation id."""

from collections.abc import Mapping
from typing import Any

from arl_gateway.compat.swerex.examples import EXAMPLES as SWEREX

__all__ = ["EXAMPLES"]

_PROMPT, _RESPONSE, _LABEL = "What is the capital of France?", "It is Paris.", "Paris"
_TEXT = {"model": "rm", "input": f"{_PROMPT}\n{_RESPONSE}"}
_CLASSIFY = {
    "verl": {"summary": "A request of verl's reward loop for raw logits", "value": {**_TEXT, "use_activation": False}},
    "messages": {
        "summary": "A conversation",
        "value": {
            "messages": [{"role": "user", "content": _PROMPT}, {"role": "assistant", "content": _RESPONSE}],
        },
    },
}
_SCORE = {
    "texts": {"summary": "One text compared with two", "value": {"text_1": _PROMPT, "text_2": [_RESPONSE, _LABEL]}},
    "items": {"summary": "SGLang's fields", "value": {"query": _PROMPT, "items": [_RESPONSE, _LABEL]}},
}
_RERANK = {
    "documents": {
        "summary": "Return the best document",
        "value": {"query": _PROMPT, "documents": [_RESPONSE, "It is Rome."], "top_n": 1},
    }
}
_OUTPUT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": _RESPONSE}]}

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    **SWEREX,
    "openrlhf_get_reward": {
        "one": {
            "summary": "A request of OpenRLHF",
            "value": {"query": [f"{_PROMPT}{_RESPONSE}"], "prompts": [_PROMPT], "labels": [_LABEL]},
        }
    },
    "slime_reward": {
        "sample": {
            "summary": "A sample with its label",
            "value": {"prompt": _PROMPT, "response": _RESPONSE, "label": _LABEL},
        }
    },
    "sglang_generate": {
        "teacher": {
            "summary": "A request of slime's on-policy distillation",
            "value": {
                "input_ids": [785, 6722, 315, 9625],
                "sampling_params": {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False},
                "return_logprob": True,
                "logprob_start_len": 0,
            },
        }
    },
    "vllm_classify": _CLASSIFY,
    "vllm_pooling": {"text": {"summary": "A text", "value": _TEXT}},
    "openai_embeddings": {"text": {"summary": "A request of verl to SGLang", "value": _TEXT}},
    "openai_chat": {
        "judge": {
            "summary": "A request of verl to a generative judge",
            "value": {
                "model": "judge",
                "messages": [{"role": "user", "content": f"Is this right? {_PROMPT} {_RESPONSE}"}],
                "temperature": 0.7,
                "n": 4,
                "max_tokens": 1024,
            },
        }
    },
    "openai_completions": {
        "teacher": {
            "summary": "A request of TRL to a teacher",
            "value": {
                "model": "teacher",
                "prompt": [[785, 6722, 315, 9625]],
                "max_tokens": 1,
                "temperature": 1.0,
                "prompt_logprobs": 20,
            },
        }
    },
    "vllm_score": _SCORE,
    "vllm_rerank": _RERANK,
    "nemo_gym_seed_session": {
        "rollout": {
            "summary": "A row of a dataset",
            "value": {"responses_create_params": {"input": [{"role": "user", "content": _PROMPT}]}},
        }
    },
    "nemo_gym_verify": {
        "rollout": {
            "summary": "A rollout with its expected answer",
            "value": {
                "responses_create_params": {"input": [{"role": "user", "content": _PROMPT}]},
                "response": {"output": [_OUTPUT]},
                "expected_answer": _LABEL,
            },
        }
    },
    "sandbox_fusion_run_code": {
        "verl": {
            "summary": "A test case of verl",
            "value": {
                "compile_timeout": 10,
                "run_timeout": 10,
                "code": "print(int(input()) + 1)",
                "stdin": "41\n",
                "memory_limit_MB": 1024,
                "language": "python",
                "files": {},
                "fetch_files": [],
            },
        }
    },
}
