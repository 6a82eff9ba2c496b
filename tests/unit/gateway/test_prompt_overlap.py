"""Test that the response is found in a query whose prompt differs from the prompt's own text."""

import pytest

from arl_gateway.compat.prompt_overlap import response_of

PROMPT = (
    "<|im_start|>user\nWhat is 6 times 7? Explain each step, then give the number.<|im_end|>\n<|im_start|>assistant\n"
)
ANSWER = "Six sevens are 42.\n#### 42"


@pytest.mark.parametrize("response", [ANSWER, "", " leading space", "<think>\n1</think>\n42"])
def test_query_that_begins_with_its_prompt_is_split_there(response: str) -> None:
    assert response_of(PROMPT + response, PROMPT) == response


@pytest.mark.parametrize("kept", [24, 40, 60, len(PROMPT) - 1])
def test_prompt_shortened_on_the_left_is_matched_by_its_end(kept: int) -> None:
    long_prompt = "Context sentence number one. " * 50 + PROMPT
    shortened = long_prompt[-(kept + 30) :]
    assert response_of(shortened + ANSWER, long_prompt) == ANSWER


@pytest.mark.parametrize(
    "before",
    [
        "<s>",
        "<s> ",
        "<|begin_of_text|><|begin_of_text|>",
        "<｜begin▁of▁sentence｜>",
        "<pad>" * 9,
        "<|endoftext|>" * 5,
        "[PAD][PAD]",
        "</s></s><s>",
        "<bos><bos>",
        "[gMASK]<sop>"[:7],
    ],
)
@pytest.mark.parametrize("prompt", [PROMPT, "Q: 6*7?\nA:", "x"])
def test_tokens_before_the_prompt_do_not_lose_the_response(before: str, prompt: str) -> None:
    assert response_of(before + prompt + ANSWER, prompt) == ANSWER


@pytest.mark.parametrize(
    ("prompt", "decoded"),
    [
        ("<s>[INST] What is it? [/INST]", "<s> [INST] What is it? [/INST]"),
        ("Is it 5 , or 6 ? Say .", "Is it 5, or 6? Say."),
        ("Caf\u00e9 \u2160 \ufb01ne \uff15 what?", "Cafe\u0301 I fine 5 what?"),
        ("one\r\ntwo\r\nthree four five six", "one\ntwo\nthree four five six"),
        ("tab\there and a much longer text", "tab here and a much longer text"),
        ("\U0001f600 says the sum is what, please?", "\ufffd says the sum is what, please?"),
        ("the rare sign \u2766 is in this very long prompt that goes on for a while, so what is 6 times 7?",) * 2,
    ],
)
def test_decoding_differences_do_not_lose_the_response(prompt: str, decoded: str) -> None:
    assert (response_of(decoded + ANSWER, prompt) or "").strip() == ANSWER


def test_unknown_token_in_the_prompt_is_matched_by_the_end_of_the_prompt() -> None:
    prompt = "The sign \u2766 stands for six. Multiply it by seven, write the steps and then the final number:"
    assert response_of(prompt.replace("\u2766", "<unk>") + ANSWER, prompt) == ANSWER


def test_instruction_at_both_ends_of_a_prompt_does_not_hide_its_end() -> None:
    instruction = "Put the final answer into a box and explain each step. "
    prompt = f"{instruction}Q: how many \u2603 are there? {instruction}"
    assert response_of(prompt.replace("\u2603", "\ufffd") + ANSWER, prompt) == ANSWER


def test_examples_with_one_ending_do_not_become_the_response() -> None:
    ending = "Think step by step and write the final number into a box.\n"
    prompt = f"\u2603Q1: 1+1? {ending}A: \\boxed{{2}}\nQ2: 2+2? {ending}"
    for first in ("<unk>", "#", ""):
        assert response_of(first + prompt[1:] + "no idea", prompt) == "no idea"


@pytest.mark.parametrize("prompt", ["Another question entirely, about a different matter?", "short one", "42 is"])
def test_query_of_another_prompt_has_no_response(prompt: str) -> None:
    assert response_of("Six sevens are 42", prompt) is None


def test_response_that_repeats_the_prompt_is_kept() -> None:
    assert response_of("<s>" + PROMPT + "You asked: " + PROMPT + "42", PROMPT) == "You asked: " + PROMPT + "42"


def test_periodic_prompt_is_split_after_its_longest_overlap() -> None:
    assert response_of("<s>" + "ab" * 100_000 + "c", "ab" * 150_000) == "c"
