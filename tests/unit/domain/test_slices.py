"""Digests add up and survive being written; those of two versions of the row hash are never equal."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.slices import EMPTY, Digest

_SUMS = st.integers(-(10**28), 10**28)
digests = st.builds(Digest, st.integers(1, 10**9), _SUMS, _SUMS, st.sampled_from((1, 2))) | st.just(EMPTY)


@given(digests, digests, digests)
def test_digest_is_a_sum(a: Digest, b: Digest, c: Digest) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + EMPTY == a


@given(digests)
def test_digest_text_is_lossless(digest: Digest) -> None:
    assert Digest.parse(str(digest)) == digest


@given(digests, digests)
def test_digests_of_two_versions_are_never_equal(one: Digest, other: Digest) -> None:
    """Scenario: the same figures by two versions, and sums over both. Outcome: neither equals what either version measures, but
    no rows are no rows, and text without a version is of version 1."""
    if one != EMPTY:
        assert replace(one, version=1) != replace(one, version=2)
    if EMPTY not in (one, other) and one.version != other.version:
        assert (one + other).version not in (1, 2)
    assert str(EMPTY) == "0:0:0"
    assert Digest.parse("0:0:0") == EMPTY
    assert Digest.parse("3:a:b") == Digest(3, 10, 11, version=1)
