"""Two ordered streams, compared without holding either."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.errors import UsageError
from postroad.reconcile.merge import PAGE, Difference, Kind, merged


async def stream(items: object) -> AsyncIterator[tuple[str, str]]:
    for item in items:  # type: ignore[attr-defined]
        yield item


async def compared(authority: object, projection: object, after: str | None = None):
    pages = [page async for page in merged(stream(authority), stream(projection), after=after)]
    return sum(page.compared for page in pages), [one for page in pages for one in page.differences]


BOOKS = st.dictionaries(
    st.text(st.characters(blacklist_characters="\0", codec="utf-8"), min_size=1), st.sampled_from("ab")
)


@given(authority=BOOKS, projection=BOOKS)
async def test_every_difference_is_found_and_none_is_invented(authority, projection):
    count, found = await compared(sorted(authority.items()), sorted(projection.items()))
    assert count == len(authority.keys() | projection.keys())
    kinds = dict.fromkeys(authority.keys() - projection.keys(), Kind.MISSING)
    kinds |= dict.fromkeys(projection.keys() - authority.keys(), Kind.EXTRA)
    kinds |= {k: Kind.MISMATCHED for k in authority.keys() & projection.keys() if authority[k] != projection[k]}
    assert [(one.key, one.kind) for one in found] == sorted(kinds.items())
    assert [(one.expected, one.found) for one in found] == [
        (authority.get(key), projection.get(key)) for key in sorted(kinds)
    ]


async def test_it_goes_on_after_a_key_whether_or_not_the_streams_know_it():
    left = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]
    assert await compared(left, left[:3], after="b") == (2, [Difference("d", Kind.MISSING, "1", None)])
    assert await compared(left[2:], left[2:3], after="b") == (2, [Difference("d", Kind.MISSING, "1", None)])


async def test_a_page_ends_with_the_last_key_that_was_compared():
    keys = [(f"{number:06}", "") for number in range(PAGE + 3)]
    pages = [page async for page in merged(stream(keys), stream(keys))]
    assert [(page.last, page.compared) for page in pages] == [(keys[PAGE - 1][0], PAGE), (keys[-1][0], 3)]


@pytest.mark.parametrize(
    ("authority", "projection", "said"),
    [
        ([("b", ""), ("a", "")], [], "the authority yields a key out of order; yield each key once"),
        ([], [("a", ""), ("a", "")], "the projection yields a key twice"),
        ([("ä", ""), ("b", "")], [], 'ORDER BY key COLLATE "C"'),
        ([("a", 1)], [], "the authority yields something that is no pair of texts"),
        (["ab"], [], "no pair of texts"),
        ([("\U00020000" * 501, "")], [], "(2000 bytes)"),
        ([("\ud800", "")], [], "no pair of texts"),
        ([], [("", "")], "the projection yields something"),
        ([], [("a\0", "")], "no NUL"),
        ([("a" * 1001, "")], [], "1 to 1000 characters"),
    ],
)
async def test_a_stream_that_is_none_is_one_clear_error(authority, projection, said):
    with pytest.raises(UsageError, match="PR107") as refused:
        await compared(authority, projection)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_what_is_kept_of_a_long_fingerprint_is_its_hash():
    _, (one,) = await compared([("a", "x" * 201)], [])
    assert one.expected is not None
    assert (one.expected[:7], len(one.expected)) == ("sha256:", 71)


async def test_both_streams_are_closed_whatever_happens():
    closed = []

    async def open_(name: str):
        try:
            yield "a", name
            yield "b", name
        finally:
            closed.append(name)

    pages = merged(open_("authority"), open_("projection"))
    async for _ in pages:
        break
    await pages.aclose()
    with pytest.raises(UsageError):
        _ = [page async for page in merged(open_("third"), stream([("a", ""), ("a", "")]))]
    assert sorted(closed) == ["authority", "projection", "third"]
