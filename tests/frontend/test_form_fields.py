"""Forms are counted before a server sees them: a server makes an object of every field, and everybody waits meanwhile."""

from __future__ import annotations

import pytest

from slotwise.backends.interface import Refused
from slotwise.frontend.admission.form_fields import sent_as

from .conftest import MakeFront
from .test_forward import error

URL_FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"


def fields(count: int) -> bytes:
    return b"&".join(b"a%d=1" % i for i in range(count))


def parts(count: int, head: bytes = b'Content-Disposition: form-data; name="a"') -> bytes:
    return b"".join(b"--b\r\n%b\r\n\r\n1\r\n" % head for _ in range(count)) + b"--b--\r\n"


@pytest.mark.anyio
@pytest.mark.parametrize(("body", "content_type"), [(fields(200_000), URL_FORM), (parts(20_000), MULTIPART)])
async def test_a_form_of_too_many_fields_reaches_no_server(make_front: MakeFront, body: bytes, content_type: str) -> None:
    front = await make_front(max_body_bytes=2**22)
    answer = await front.predict(body, headers={"content-type": content_type})
    assert (answer.status_code, len(front.server.seen)) == (413, 0)
    assert "1000" in error(answer)["message"]
    assert front.gateway.body_memory.now_bytes == 0


@pytest.mark.anyio
async def test_the_most_fields_are_an_option(make_front: MakeFront) -> None:
    front = await make_front(max_form_fields=2)
    for count, status in ((2, 200), (3, 413)):
        for body, content_type in ((fields(count), URL_FORM), (parts(count), MULTIPART)):
            assert (await front.predict(body, headers={"content-type": content_type})).status_code == status
    assert len(front.server.seen) == 2


@pytest.mark.parametrize("content_type", [URL_FORM, "Application/X-WWW-Form-URLencoded", URL_FORM + " ; charset=utf-8"])
def test_a_form_is_one_however_its_type_is_written(content_type: str) -> None:
    assert sent_as(content_type, fields(1000), 1000) == content_type
    with pytest.raises(Refused) as refused:
        sent_as(content_type, fields(1001), 1000)
    assert refused.value.status == 413
    assert sent_as(content_type, fields(1001) + b"\n", 1000) == "application/octet-stream"  # a file, as curl sends it


@pytest.mark.parametrize(
    "content_type",
    [MULTIPART, "Multipart/Form-Data;Boundary=b", 'multipart/form-data; boundary="b"; charset=utf-8', MULTIPART + " ;"],
)
def test_parts_are_counted_however_their_type_is_written(content_type: str) -> None:
    assert sent_as(content_type, parts(1000), 1000) == content_type
    with pytest.raises(Refused) as refused:
        sent_as(content_type, parts(1001), 1000)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=a; boundary=b",
     'multipart/form-data; boundary="a', "multipart/form-data; boundary*=b", "multipart/form-data, boundary=b",
     f"multipart/form-data; boundary={'x' * 71}"],
)  # fmt: skip
def test_a_boundary_that_two_servers_might_read_in_two_ways_is_refused(content_type: str) -> None:
    with pytest.raises(Refused) as refused:
        sent_as(content_type, parts(1), 1000)
    assert refused.value.status == 400


def test_a_part_hides_no_fields_in_its_own_head_nor_in_a_form_within() -> None:
    many = b"Content-Disposition: form-data; " + b"; ".join(b"a%d=1" % i for i in range(2000))
    within = b"Content-Type: Multipart/Mixed; boundary=c\r\n\r\n" + b"--c\r\n\r\n\r\n" * 1001
    for body in (parts(1, many), parts(1, within)):
        with pytest.raises(Refused) as refused:
            sent_as(MULTIPART, body, 1000)
        assert refused.value.status == 413
    assert sent_as(MULTIPART, parts(1, b"Content-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\r\n"), 1000)


@pytest.mark.parametrize("line", [b"Content-Transfer-Encoding: base64", b"content-transfer-encoding:quoted-printable; x=y"])
def test_a_part_in_an_encoding_of_its_own_is_refused(line: bytes) -> None:
    body = parts(1) + parts(1, b'Content-Disposition: form-data; name="a"\r\n' + line)
    with pytest.raises(Refused, match="Content-Transfer-Encoding") as refused:
        sent_as(MULTIPART, body, 1000)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "line", [b"Content-Transfer-Encoding: Binary", b"content-transfer-encoding:8bit", b"X-A: 7bit, base64"]
)
def test_a_part_that_comes_as_it_is_says_so_or_not(line: bytes) -> None:
    within = b"\r\n\r\nContent-Transfer-Encoding: base64"  # is the content
    assert sent_as(MULTIPART, parts(1, line + within), 1000) == MULTIPART


@pytest.mark.parametrize("body", [b"data=%zz", b"%=1", b"a=1&b%4=2", b"a=%4", b"%25%&a=1"])
def test_a_url_form_with_a_percent_sign_that_means_nothing_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="%") as refused:
        sent_as(URL_FORM, body, 1000)
    assert refused.value.status == 400
    assert sent_as(URL_FORM, b"a=%4a&b=%C3%a4", 1000) == URL_FORM


def test_what_is_no_form_is_let_be() -> None:
    for content_type in ("", "image/png", "application/json", "text/plain; a=multipart/form-data"):
        assert sent_as(content_type, fields(5000), 1000) == content_type
    assert sent_as(MULTIPART, parts(1, b"Content-Type: text/x-sql\r\n\r\n" + b"-- a comment\r\n" * 5000), 1000)


@pytest.mark.parametrize("body", [b"data=[1, 2]", "data=a b, \u00e9!&n=1".encode(), b"a.b-c_%41+d=x", b"data=1"])
def test_a_form_need_not_be_encoded_as_browsers_do(body: bytes) -> None:
    assert sent_as("application/x-www-form-urlencoded", body, 2) == "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    "body", [b"[1, 2]", b'{"a": "b=c"}', b"two words=1", b"=1, 2", b"data=1, 2\n", b"data=\x89PNG\x00", b"\x89PNG=1"]
)
def test_a_file_that_curl_calls_a_form_is_none(body: bytes) -> None:
    assert sent_as("application/x-www-form-urlencoded", body, 2) == "application/octet-stream"


def test_what_nobody_encoded_is_limited_too() -> None:
    with pytest.raises(Refused, match="fields"):
        sent_as("application/x-www-form-urlencoded", b"a=[1]&b=2&c=3", 2)
    with pytest.raises(Refused, match="hex digits"):
        sent_as("application/x-www-form-urlencoded", b"a=100% [1]", 2)
