"""Concatenated JSON is split into its objects, however it arrives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.console.json_stream import DEPTH_MAX, JsonSplitter, JsonStreamInvalid

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), values, max_size=4)


@settings(max_examples=40)
@given(
    st.lists(objects, max_size=4),
    st.sampled_from(["", " ", "\n", "\r\n\t"]),
    st.booleans(),
    st.data(),
)
def test_objects_are_found_in_any_pieces(
    rows: list[dict[str, object]], between: str, is_ascii: bool, data: st.DataObject
) -> None:
    whole = between.join(json.dumps(row, ensure_ascii=is_ascii) for row in rows)
    encoded = whole.encode(errors="surrogatepass")
    splitter = JsonSplitter()
    found: list[bytes] = []
    at = 0
    while at < len(encoded):
        size = data.draw(st.integers(1, max(1, len(encoded) - at)))
        found += splitter.feed(encoded[at : at + size])
        at += size
    splitter.close()
    assert [json.loads(one.decode(errors="surrogatepass")) for one in found] == rows


@pytest.mark.parametrize("text", [b"1", b"[]", b'"a"', b"{} x", b"}", b"null"])
def test_other_values_are_refused(text: bytes) -> None:
    with pytest.raises(JsonStreamInvalid):
        JsonSplitter().feed(text)


@pytest.mark.parametrize("text", [b"{", b'{"a', b'{"a": "\\', b'{"a": [}'])
def test_an_incomplete_object_is_refused_at_the_end(text: bytes) -> None:
    splitter = JsonSplitter()
    assert splitter.feed(text) == []
    with pytest.raises(JsonStreamInvalid):
        splitter.close()


def test_an_object_has_a_limited_size() -> None:
    splitter = JsonSplitter(object_bytes_max=100)
    assert len(splitter.feed(b'{"a":1}' * 50)) == 50
    with pytest.raises(JsonStreamInvalid, match="more than 100 bytes"):
        splitter.feed(b'{"a": "' + b"x" * 100)


def test_objects_that_a_decoder_cannot_take_are_refused() -> None:
    deep = b'{"a":' + b"[" * DEPTH_MAX
    with pytest.raises(JsonStreamInvalid, match="deep"):
        JsonSplitter().feed(deep)
    assert JsonSplitter().feed(deep[:-1] + b"]" * (DEPTH_MAX - 1) + b"}")
