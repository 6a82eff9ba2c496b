"""Secrets are removed from an endpoint's response in every encoding in which they occur."""

import json
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable
from html import escape
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_api.redaction import REDACTED, SecretRedactor

KEY = 'a+b/c==Qq"x&y z'


@pytest.mark.parametrize(
    "form",
    [
        *(KEY, quote(KEY), quote(KEY, safe=""), quote_plus(KEY), json.dumps(KEY)[1:-1], escape(KEY)),
        json.dumps(KEY)[1:-1].replace("/", "\\/"),
        *(
            quote(KEY).replace("%2B", "%2b"),
            KEY.replace("+", "\\u002B").replace("=", "\\u003d"),
            KEY.replace("&", "&#38;"),
        ),
        *(KEY.upper(), KEY.lower(), KEY.encode().hex(), KEY.encode().hex(" "), KEY.encode().hex(":").upper()),
        *("".join(f"%{ord(each):02X}" for each in KEY), "".join(f"%25{ord(each):02x}" for each in KEY)),
        *("".join(f"\\u{ord(each):04X}" for each in KEY), "".join(f"\\x{ord(each):02x}" for each in KEY)),
        *("".join(f"&#{ord(each)};" for each in KEY), "".join(f"&#x{ord(each):X};" for each in KEY)),
        "".join(f"&#{ord(each)};" if at % 2 else each for at, each in enumerate(KEY)),
    ],
)
def test_secret_is_redacted_in_every_encoding(form: str) -> None:
    assert SecretRedactor([KEY]).redact(f"<{form}>".encode()) == b"<" + REDACTED + b">"


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "user:"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode, encodebytes])
def test_secret_inside_base64_is_redacted_at_any_position(before: str, encode: Callable[[bytes], bytes]) -> None:
    secret = "sk-0123456789abcdef?>~ghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    shown = SecretRedactor([secret]).redact(encode(f"{before}{secret}:after".encode()))
    assert REDACTED in shown
    assert len(shown) < len(before) + 40


@pytest.mark.parametrize("truncated", [False, True])
async def test_large_body_is_redacted_in_parts_like_in_one(truncated: bool) -> None:
    secret = "sk-0123456789abcdef"
    content = (b"x" * 1000 + secret.encode() + b"%73k-0123456789abcdef").ljust(1 << 17, b"y") * 9 + secret[:9].encode()
    redactor = SecretRedactor([secret])
    whole = redactor.redact_truncated(content) if truncated else redactor.redact(content)
    assert await redactor.redact_body(content, truncated=truncated) == whole
    assert whole.count(REDACTED) == 18
    assert (b"sk-0" in whole) is not truncated


def test_token_and_basic_password_inside_headers_are_redacted() -> None:
    basic = b64encode(b"user:pass-word").decode()
    hiding = SecretRedactor(["Bearer sk-0123456789", f"Basic {basic}"])
    assert hiding.redact(b"sk-0123456789 pass-word " + basic.encode()) == b" ".join([REDACTED] * 3)


def test_ordinary_text_and_too_short_secrets_are_not_redacted() -> None:
    assert (
        SecretRedactor(["abc", "sk-0123456789"]).redact(b"abc application/json 2024-06-01")
        == b"abc application/json 2024-06-01"
    )


@given(st.text("abc", min_size=4, max_size=12), st.lists(st.text("xyz", max_size=6), max_size=6), st.integers(0, 80))
def test_truncated_response_contains_no_partial_secret(secret: str, between: list[str], cut: int) -> None:
    content = f"x{secret}y".join(between).encode()[:cut]
    assert not set(b"abc") & set(SecretRedactor([secret]).redact_truncated(content))
