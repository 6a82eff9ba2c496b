"""Run five steps of TRL's GRPOTrainer with a tiny random model and rewards of a running system.

`python grpo.py ADDRESS KEY DIRECTORY`. No model hub: the model is made of its configuration, the tokenizer of bytes.
"""

import json
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from arl_tangram.adapters.trl import TangramReward

STEPS = 5
ROWS = [("What is the capital of France?", "Paris"), ("What is six times seven?", "42")] * 4


def a_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(["<pad>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def a_model(vocabulary: int) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    )


def rewards_of(address: str, key: str) -> list[TangramReward]:
    common = {"trajectory": "rollout", "url": address, "api_key": key}
    return [
        TangramReward("minilm", reference="answer", task="grpo", **common),
        TangramReward("quality", with_prompt=True, task="grpo", **common),
    ]


def main(address: str, key: str, directory: str) -> None:
    tokenizer = a_tokenizer()
    rows = [
        {"prompt": prompt, "answer": answer, "rollout": f"r{number}"} for number, (prompt, answer) in enumerate(ROWS)
    ]
    arguments = GRPOConfig(
        output_dir=directory,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=12,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        seed=1,
    )
    trainer = GRPOTrainer(
        model=a_model(len(tokenizer)),
        reward_funcs=rewards_of(address, key),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "rewards/tangram_minilm/mean" in entry]
    print(json.dumps({"steps": trainer.state.global_step, "logged": logged}))


if __name__ == "__main__":
    main(*sys.argv[1:])
