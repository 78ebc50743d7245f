"""How shards are shared out: fairly, completely, and only what rests is given up."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatching import an_event
from postroad.outbox.shards import SHARDS, fair_share, lease_name, shard_of, surplus
from support import until

shards = st.frozensets(st.integers(0, SHARDS - 1))


def test_names_and_numbers_of_shards_belong_together():
    assert [shard_of(lease_name(shard)) for shard in range(SHARDS)] == list(range(SHARDS))
    assert lease_name(7) == "shard:07"


@given(st.integers(1, 100))
def test_all_shares_together_are_all_shards_and_no_share_is_larger_than_needed(living):
    assert fair_share(living) * living >= SHARDS
    assert (fair_share(living) - 1) * living < SHARDS


@given(held=shards, busy=shards, draining=shards, living=st.integers(0, 40))
def test_what_is_given_up_is_exactly_the_excess_and_rather_what_drains_or_rests(held, busy, draining, living):
    given_up = surplus(held, busy=busy, draining=draining, living=living)
    assert given_up <= held
    assert len(given_up) == max(0, len(held) - fair_share(living))
    kept = held - given_up
    assert not (kept & draining and given_up - draining)
    if not given_up & draining:
        assert not (kept - busy and given_up & busy)


@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=8), random=st.randoms(use_true_random=False))
def test_rounds_of_giving_up_and_taking_end_with_everything_held_by_fair_shares(counts, random):
    """Dispatchers come and go (killed ones drop everything); a round each, in any order, twice, settles it."""
    holders: dict[int, set[int]] = {}
    for living in counts:
        holders = {number: holders.get(number, set()) for number in range(living)}
        for _ in range(2):
            for number in random.sample(sorted(holders), len(holders)):
                mine = holders[number]
                mine -= surplus(mine, busy=(), draining=(), living=living)
                free = set(range(SHARDS)) - set().union(*holders.values())
                mine |= set(sorted(free)[: max(0, fair_share(living) - len(mine))])
        assert sorted(shard for mine in holders.values() for shard in mine) == list(range(SHARDS))
        assert max(map(len, holders.values())) <= fair_share(living)


async def test_one_process_takes_all_shards_at_once_and_two_share_them(process, broker):
    first = await process(broker)
    assert first.held == tuple(range(SHARDS))
    second = await process(broker, shards=8)
    await until(lambda: len(first.held) == 8)
    assert sorted(first.held + second.held) == list(range(SHARDS))
    await second.stop()
    await until(lambda: len(first.held) == SHARDS)


async def test_the_shards_of_a_killed_dispatcher_are_taken_over_with_what_it_had_sent(process, author, broker):
    broker.at_once = False
    ids = await author.stage(*[an_event(f"k{number}") for number in range(50)])
    first = await process(broker)
    await until(lambda: len(broker.unanswered) == 50)
    assert first.running is not None
    first.running.cancel()
    await asyncio.gather(first.running, return_exceptions=True)
    assert first.dispatcher.receipt() == (0, 0, 50)
    await first.keeper.stop()  # Its leases are not released: they run out.
    other = type(broker)()
    second = await process(other, shards=None)
    async with asyncio.timeout(1.5 + 2):
        await until(lambda: len(second.held) == SHARDS)
    await until(lambda: sorted(other.ids()) == sorted(ids))


async def test_a_surplus_shard_is_given_up_only_when_nothing_of_it_is_in_flight(process, author, broker):
    broker.at_once = False
    await author.stage(*[an_event(None) for _ in range(32)])
    first = await process(broker)
    await until(lambda: len(broker.unanswered) == 32)
    second = await process(type(broker)(), shards=None)
    with pytest.raises(TimeoutError):
        await until(lambda: len(second.held) > 0, within=0.7)
    assert len(first.held) == SHARDS
    broker.answer()
    await until(lambda: len(first.held) == len(second.held) == 8)
