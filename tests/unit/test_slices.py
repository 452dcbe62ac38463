"""Digests add up and survive being written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.slices import EMPTY, Digest

digests = st.builds(Digest, st.integers(0, 10**9), st.integers(-(10**28), 10**28), st.integers(-(10**28), 10**28))


@given(digests, digests, digests)
def test_digest_is_a_sum(a: Digest, b: Digest, c: Digest) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + EMPTY == a


@given(digests)
def test_digest_text_is_lossless(digest: Digest) -> None:
    assert Digest.parse(str(digest)) == digest
