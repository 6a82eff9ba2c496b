"""Endpoint settings of an operator, and the validation errors for wrong ones."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from arl_api.settings import ApiSettings, EndpointSettings
from arl_core.control.rate_limits import RateLimit


def settings(**endpoint: Any) -> ApiSettings:
    given = {"port": 1, "database_url": "postgresql://x", "service_token": "t" * 16, "scheduler_url": "http://s"}
    return ApiSettings(**given, endpoints={"e": {"url": "https://api.example/v1", **endpoint}})


def test_endpoint_key_is_read_from_file_and_never_printed(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-secret-0123\n")
    read = settings(key_file=str(file))
    key = read.endpoints["e"].key
    file.write_text("two words\nand a line")
    with pytest.raises(ValidationError, match=f"e: key_file {file}: the key must be printable"):
        settings(key_file=str(file))
    assert key is not None
    assert key.get_secret_value() == "sk-secret-0123"
    secret = "sk-secret-0123"
    read = settings(key=secret, secret_headers={"X-Key": secret}, secret_query={"k": secret})
    assert "sk-secret" not in repr(read) + read.model_dump_json()


def test_rate_without_burst_gets_one_second_of_burst() -> None:
    url = "https://api.example"
    assert EndpointSettings(url=url).rate is None
    assert EndpointSettings(url=url, rate_per_s=2.5).rate == RateLimit(2.5, 3)
    assert EndpointSettings(url=url, rate_per_s=0.1).rate == RateLimit(0.1, 1)
    assert EndpointSettings(url=url, rate_per_s=2.5, burst=10).rate == RateLimit(2.5, 10)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ({"url": "api.example"}, "url"),
        ({"url": "https://user:pw@api.example"}, "url"),
        ({"url": "https://api.example?key=x"}, "url"),
        ({"key": "a b\nc"}, "printable"),
        ({"key": "x", "key_file": "/k"}, "one of key and key_file"),
        ({"key_file": "/nonexistent"}, "key_file /nonexistent cannot be read: FileNotFoundError"),
        ({"key": "x", "headers": {"authorization": "y"}}, "authorization: given twice"),
        ({"headers": {"X-A": "a"}, "secret_headers": {"x-a": "b"}}, "x-a: given twice"),
        ({"query": {"a": "a"}, "secret_query": {"a": "b"}}, "a: given twice"),
        ({"headers": {"X-A": "a\r\nb"}}, "X-A must be printable"),
        ({"secret_query": {"k": "é"}}, "k must be printable"),
        ({"headers": {"Content-Length": "3"}}, "Content-Length: set by the broker"),
        ({"burst": 3}, "burst needs rate_per_s"),
        ({"rate_per_s": 0}, "rate_per_s"),
        ({"concurrency": 0}, "concurrency"),
        ({"methods": ["TRACE"]}, "methods"),
        ({"methods": []}, "methods"),
        ({"rate": 3}, "rate"),
    ],
)
def test_invalid_endpoint_setting_is_rejected_with_its_reason(endpoint: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(**endpoint)
