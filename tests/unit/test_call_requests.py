"""What a call may ask for: a request that stays below its endpoint's address and has nothing secret in it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from arl_tangram import call_action
from arl_wire.actions import SubmitAction
from arl_wire.calls import CallRequest
from arl_wire.errors import ValidationFailed


def a_call(**fields: Any) -> SubmitAction:
    return SubmitAction.model_validate({"task": "t", "kind": "call", "endpoint": "e", "request": {}, **fields})


@pytest.mark.parametrize("path", ["v1/search", "/v1/search", "a%20b", "%C3%A9", "a/b..c", "@evil/x", "http:/x", "a:b"])
def test_a_path_below_the_address_is_one(path: str) -> None:
    assert CallRequest(path=path).path == path.removeprefix("/")


@pytest.mark.parametrize(
    "path",
    [
        *("..", "a/../b", "a/%2e%2e/b", "a/%252e%252E/b", "./a", "%2e/a", "..%2fadmin", "a%5c..%5cb", "a\\b", "a?b=c"),
        *("a#b", "a b", "a\r\nX: y", "a%0d%0aX", "\x00", "é"),
    ],
)
def test_a_path_that_leads_elsewhere_or_is_none_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="path"):
        CallRequest(path=path)


@given(st.text(alphabet="./%25ef2cFCAb\\", max_size=24))
def test_no_accepted_path_has_a_segment_that_goes_up_however_often_it_is_decoded(path: str) -> None:
    from urllib.parse import unquote

    try:
        accepted = CallRequest(path=path).path
    except ValidationError:
        return
    for _ in range(12):
        assert not {".", ".."} & set(accepted.replace("\\", "/").split("/"))
        accepted = unquote(accepted)


@pytest.mark.parametrize("name", ["Authorization", "cookie", "X-API-Key", "Host", "Content-Length", "a b", "", "é"])
def test_headers_that_are_secret_or_the_senders_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="headers"):
        CallRequest(headers={name: "x"})


@pytest.mark.parametrize("value", ["a\r\nb", "a\x00", "é"])
def test_headers_end_with_their_line(value: str) -> None:
    with pytest.raises(ValidationError, match="headers"):
        CallRequest(headers={"x-a": value})


def test_a_body_is_json_or_text_and_no_get_has_one() -> None:
    assert (CallRequest(json_body={"a": "é"}).content, CallRequest(json_body=[]).content) == (
        b'{"a": "\\u00e9"}',
        b"[]",
    )
    assert (CallRequest(body="é").content, CallRequest().content) == ("é".encode(), b"")
    for wrong in ({"json_body": 1, "body": "x"}, {"method": "GET", "body": "x"}, {"body": "\ud800"}):
        with pytest.raises(ValidationError):
            CallRequest.model_validate(wrong)
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    for unwritable in (deep, float("nan")):
        with pytest.raises(ValidationError, match=r"json_body|JSON"):
            CallRequest(json_body=unwritable)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"endpoint": None}, "needs an endpoint and a request"),
        ({"request": None}, "needs an endpoint and a request"),
        ({"argv": ["true"]}, "takes no argv"),
        ({"environment": {"scope": "trajectory"}, "trajectory": "r"}, "takes no environment"),
        ({"demand": {"cpu": 2}}, "takes no demand"),
        ({"service": "minilm", "items": [{"text": "a"}]}, "scores nothing"),
        ({"retries": 1}, "retries of a POST may carry it out twice"),
        ({"kind": "exec", "argv": ["true"]}, "calls nothing"),
    ],
)
def test_what_belongs_to_other_kinds_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        a_call(**fields)


def test_what_may_be_sent_twice_may_have_retries() -> None:
    assert a_call(retries=2, request={"method": "GET"}).retries == 2
    assert a_call(retries=2, idempotent=True).retries == 2


def test_the_sdk_takes_a_get_where_there_is_no_body() -> None:
    def method(**options: Any) -> str:
        request = call_action("e", "p", **options).request
        assert request is not None
        return request.method

    assert [method(), method(json_body={}), method(body="x"), method(method="PUT")] == ["GET", "POST", "POST", "PUT"]
    with pytest.raises(ValidationFailed, match="timeout: there is no such option; is it timeout_s"):
        call_action("e", timeout=1)  # type: ignore[call-arg]
