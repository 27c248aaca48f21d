"""A pool and its model side by side: whatever is done, in any order, both hold the same.

The model is plain Python: what each rank's worker said, what was promised to it, who waits, which
leases are left. Routes are judged by the oracle; every step ends with a comparison of all state.
"""

import asyncio
from dataclasses import dataclass, field

import fakeredis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmpoold.protocol.errors import Conflict, Stale
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Dispatch
from lmpoold.protocol.views import Counts
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.store.oracle import Asked, Hints, OracleRank, Weights, decide, promise
from tests.store.pool import BLOCK, Pool, begin, ended, names, pages_of

RANKS = (0, 1, 2)
STEMS = [[stem] * 12 + list(range(stem, stem + 12)) for stem in (1, 2)]
WEIGHTS = Weights()
MOST_FALLS = 8

ranks = st.sampled_from(RANKS)
depths = st.tuples(*[st.integers(0, 6)] * len(STEMS))
counts = st.builds(
    Counts, *[st.integers(0, most) for most in (24, 12, 60, 60)], sequences=st.integers(0, 2)
)
prompts = st.tuples(st.sampled_from(STEMS), st.integers(0, 24)).map(lambda cut: cut[0][: cut[1]])
picks = st.integers(0, 1000)


@dataclass
class Request:
    """One request: where it is, under which attempt."""

    prompt: list[int]
    asked: Asked
    place: str = "parked"
    rank: int = -1
    attempt: int = 0
    falls: int = 0
    cancelled: bool = False
    admitted: bool = False

    def ticket(self, name: str) -> str:
        return f"{name}.{self.attempt}"


@dataclass
class Model:
    """What the pool must hold."""

    ranks: dict[int, OracleRank] = field(default_factory=dict)
    held: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)
    overdue: set[tuple[int, str]] = field(default_factory=set)
    requests: dict[str, Request] = field(default_factory=dict)
    hints: Hints = field(default_factory=Hints)

    def at(self, place: str, rank: int = -1) -> list[str]:
        return [
            name
            for name, one in self.requests.items()
            if one.place == place and rank in (-1, one.rank)
        ]

    def sync(self) -> None:
        for rank, promised in self.held.items():
            self.ranks[rank].promised = list(promised.values())

    def new_epoch(self, rank: int, *, fell: bool) -> None:
        """The epoch before is over: pages, promises, flights and lease sides with it."""
        self.held[rank] = {}
        self.overdue = {one for one in self.overdue if one[0] != rank}
        for flying in self.hints.in_flight.values():
            flying.discard(rank)
        for _, sides in self.hints.leases.values():
            if quota := sides.pop(rank, 0):
                sides[-1 - rank] = sides.get(-1 - rank, 0) + quota  # still written, of no effect
        for name in self.at("routed", rank):
            one = self.requests[name]
            one.falls += fell
            one.attempt, one.admitted, one.rank = one.attempt + 1, False, -1
            one.place = "ended" if fell and one.falls >= MOST_FALLS else "parked"


class PoolMachine(RuleBasedStateMachine):
    """On fakeredis, or on the server of `url`."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.number = 0
        self.pool: Pool = self.runner.run(self._begin())

    async def _begin(self) -> Pool:
        if self.url:
            redis = open_redis(self.url)
            await redis.flushall()
        else:
            redis = fakeredis.FakeAsyncRedis(
                server=fakeredis.FakeServer(version=(7, 0)), protocol=2
            )
        pool = await begin(PoolStore(redis, Keyspace()))
        await pool.set(flight_ttl_ms=3_600_000, pairs="0-1")
        self.model.hints.links = frozenset([frozenset((0, 1))])
        self.token = await pool.store.acquire("d0", 3_600_000)
        return pool

    def teardown(self) -> None:
        self.runner.run(self.pool.store.redis.aclose())
        self.runner.close()

    def run(self, work):
        return self.runner.run(work)

    def live(self) -> list[int]:
        return [number for number, rank in self.model.ranks.items() if rank.state != "down"]

    # --- ranks

    @rule(rank=ranks)
    def join(self, rank):
        here = self.model.ranks.get(rank)
        if here is not None and here.state != "down" and here.alive:
            try:
                self.run(self.pool.join(rank))
            except Conflict:
                return
            raise AssertionError("a rank of a live worker was given away")
        self.run(self.pool.join(rank))
        self.model.ranks[rank] = OracleRank(free=32)
        self.model.new_epoch(rank, fell=True)

    @precondition(lambda self: self.live())
    @rule(pick=picks)
    def leave(self, pick):
        rank = self.live()[pick % len(self.live())]
        self.run(self.pool.store.rank_down(rank, self.pool.epochs[rank]))
        self.model.ranks[rank] = OracleRank(state="down")
        self.model.new_epoch(rank, fell=False)

    @precondition(lambda self: self.live())
    @rule(pick=picks)
    def fall_silent(self, pick):
        rank = self.live()[pick % len(self.live())]
        self.run(self.pool.lose(rank))
        self.model.ranks[rank].alive = False

    @precondition(lambda self: self.live())
    @rule(pick=picks, draining=st.booleans())
    def drain(self, pick, draining):
        rank = self.live()[pick % len(self.live())]
        self.run(self.pool.store.drain(rank, draining=draining))
        self.model.ranks[rank].state = "drain" if draining else "up"

    @rule()
    def reap(self):
        self.run(self.pool.store.reap(1000))
        for number, rank in self.model.ranks.items():
            if rank.state != "down" and not rank.alive:
                self.model.ranks[number] = OracleRank(state="down")
                self.model.new_epoch(number, fell=True)
        for number, ticket in self.model.overdue:
            self.model.held[number].pop(ticket, None)
        self.model.overdue.clear()
        self.model.hints.leases = {
            name: (depth, sides)
            for name, (depth, sides) in self.model.hints.leases.items()
            if any(quota > 0 for rank, quota in sides.items() if rank >= 0)
        }

    # --- requests

    @rule(prompt=prompts, most=st.integers(1, 20), priority=st.sampled_from([0, 0, 2]))
    def ask(self, prompt, most, priority):
        self.number += 1
        name = f"q{self.number}"
        asked = Asked(len(prompt), most, names(prompt), priority=priority)
        self.model.requests[name] = Request(prompt, asked)
        self.judge(name, self.run(self.pool.ask(name, prompt, **self.options(asked))))

    @precondition(lambda self: self.model.at("parked"))
    @rule(pick=picks)
    def retry(self, pick):
        waiting = self.model.at("parked")
        name = waiting[pick % len(waiting)]
        one = self.model.requests[name]
        routed = self.run(self.pool.retry(name, one.prompt, **self.options(one.asked)))
        if one.cancelled:
            assert (routed.outcome, routed.detail) == ("refused", "cancelled")
            one.place = "ended"
        else:
            self.judge(name, routed)

    @staticmethod
    def options(asked):
        return {"max_tokens": asked.max_tokens, "priority": asked.priority}

    def judge(self, name, routed):
        self.model.sync()
        one = self.model.requests[name]
        verdict = decide(self.model.ranks, one.asked, BLOCK, WEIGHTS, self.model.hints)
        if not verdict.choices:
            assert routed.outcome == "parked"
            return
        assert routed.rank in verdict.choices, (routed, verdict)
        made = verdict.offers[routed.rank]
        assert (routed.hit, routed.need) == (made.hit, made.need)
        rank = self.model.ranks[routed.rank]
        promise(routed.rank, rank, made, one.asked, BLOCK, WEIGHTS, self.model.hints)
        one.place, one.rank = "routed", routed.rank
        self.model.held[routed.rank][one.ticket(name)] = rank.promised.pop()

    @precondition(lambda self: self.model.requests)
    @rule(pick=picks)
    def cancel(self, pick):
        name = list(self.model.requests)[pick % len(self.model.requests)]
        one = self.model.requests[name]
        self.run(self.pool.store.cancel(name))
        if one.place == "parked":
            one.place = "ended"
        elif one.place == "routed":
            one.cancelled = True

    @precondition(lambda self: self.model.at("routed"))
    @rule(pick=picks)
    def end(self, pick):
        running = self.model.at("routed")
        name = running[pick % len(running)]
        one = self.model.requests[name]
        (dispatch,) = [
            message
            for message in self.run(self.pool.inbox(one.rank))
            if isinstance(message, Dispatch) and message.id == name
        ]
        self.run(self.pool.emit(one.rank, {}, [ended(dispatch)]))
        self.model.held[one.rank].pop(one.ticket(name), None)
        one.place, one.rank = "ended", -1

    @precondition(lambda self: any(self.model.held.values()))
    @rule(pick=picks)
    def let_a_reservation_grow_old(self, pick):
        kept = [(rank, ticket) for rank, held in self.model.held.items() for ticket in held]
        rank, ticket = kept[pick % len(kept)]
        redis, key = self.pool.store.redis, self.pool.store.keys.reservations(rank)
        blocks, tokens, _, deepest = self.run(redis.hget(key, ticket)).decode().split(":")
        self.run(redis.hset(key, ticket, f"{blocks}:{tokens}:1:{deepest}"))
        self.model.overdue.add((rank, ticket))

    # --- what workers report

    @precondition(lambda self: self.live())
    @rule(pick=picks, said=counts, deep=depths, admit=st.booleans(), whole=st.booleans())
    def report(self, pick, said, deep, admit, whole):
        number = self.live()[pick % len(self.live())]
        rank, pages = self.model.ranks[number], {}
        for stem, depth in zip(STEMS, deep, strict=True):
            pages |= pages_of(stem[: depth * BLOCK])
        tickets = []
        if whole:
            self.pool.versions[number] += 1
            version = self.pool.versions[number]
            self.run(self.pool.store.swap(number, self.pool.epochs[number], version, said, pages))
        else:
            if admit:
                tickets = [
                    self.model.requests[name].ticket(name)
                    for name in self.model.at("routed", number)
                ]
            found = self.run(
                self.pool.report(
                    number,
                    free=said.free,
                    reclaimable=said.reclaimable,
                    wait=said.wait_tokens,
                    run=said.run_tokens,
                    sequences=said.sequences,
                    admitted=tickets,
                    puts={name: page for name, page in pages.items() if name not in rank.pages},
                    dels=[name for name in rank.pages if name not in pages],
                )
            )
            assert found == self.pool.versions[number]
        for ticket in tickets:
            self.model.held[number].pop(ticket, None)
        rank.free, rank.reclaimable = said.free, said.reclaimable
        rank.wait_tokens, rank.run_tokens = said.wait_tokens, said.run_tokens
        rank.sequences, rank.pages = said.sequences, frozenset(pages)

    @precondition(lambda self: self.live())
    @rule(pick=picks, how=st.sampled_from(["again", "skipping", "stale"]), said=counts)
    def report_out_of_turn(self, pick, how, said):
        number = self.live()[pick % len(self.live())]
        held, epoch = self.pool.versions[number], self.pool.epochs[number]
        base, new = {"again": (held - 1, held), "skipping": (held + 3, held + 4)}.get(
            how, (held, held + 1)
        )
        epoch = str(int(epoch) - 1) if how == "stale" else epoch
        work = self.pool.store.delta(number, epoch, base, new, said, puts=pages_of(STEMS[0]))
        try:
            assert self.run(work) == held
        except Stale:
            assert how == "stale"

    # --- leases

    @rule(
        stem=st.sampled_from(STEMS),
        depth=st.integers(1, 6),
        quotas=st.dictionaries(ranks, st.integers(1, 2), min_size=1),
    )
    def grant(self, stem, depth, quotas):
        name = names(stem)[depth - 1]
        known = self.model.ranks
        right = all(rank in known and known[rank].state == "up" for rank in quotas)
        try:
            self.run(self.pool.store.lease_grant(self.token, name, depth, 3_600_000, quotas))
        except Conflict:
            assert not right
            return
        assert right
        self.model.hints.leases[name] = (depth, dict(quotas))

    @precondition(lambda self: self.model.hints.leases)
    @rule(pick=picks)
    def end_a_lease(self, pick):
        name = list(self.model.hints.leases)[pick % len(self.model.hints.leases)]
        assert self.run(self.pool.store.lease_expire(self.token, [name])) == [name]
        del self.model.hints.leases[name]

    @rule()
    def another_leads(self):
        old = self.token
        self.run(self.pool.store.redis.delete(self.pool.store.keys.lead))
        self.token = self.run(self.pool.store.acquire(f"d{old}", 3_600_000))
        assert int(self.token) > int(old)
        try:
            self.run(self.pool.store.lease_expire(old))
        except Stale:
            return
        raise AssertionError("a leader of the past ended leases")

    # --- all of it

    @invariant()
    def both_hold_the_same(self):
        self.run(self._compare())

    async def _compare(self):
        store, model = self.pool.store, self.model
        model.sync()
        rows = {row.rank: row for row in await store.ranks()}
        assert rows.keys() == model.ranks.keys()
        for number, rank in model.ranks.items():
            row = rows[number]
            lost = rank.state != "down" and not rank.alive
            assert row.state == ("lost" if lost else rank.state)
            said = (row.free, row.reclaimable, row.wait_tokens, row.run_tokens, row.sequences)
            assert said == (
                rank.free,
                rank.reclaimable,
                rank.wait_tokens,
                rank.run_tokens,
                rank.sequences,
            )
            blocks = sum(blocks for blocks, _ in rank.promised)
            tokens = sum(tokens for _, tokens in rank.promised)
            assert (row.reserved, row.reserved_tokens) == (blocks, tokens)
            held = await store.redis.hkeys(store.keys.reservations(number))
            assert {raw.decode() for raw in held} == model.held[number].keys()
            pages = await store.redis.hkeys(store.keys.pages(number))
            assert {raw.decode() for raw in pages} - {"_"} == rank.pages
        assert set(await self.pool.parked_ids()) == set(model.at("parked"))
        leases = {}
        for raw, text in (await store.redis.hgetall(store.keys.leases)).items():
            depth, _, *sides = text.decode().split()
            quotas = sum(int(side.split(":")[2]) for side in sides)
            leases[raw.decode()] = (int(depth), quotas)
        assert leases == {
            name: (depth, sum(sides.values()))
            for name, (depth, sides) in model.hints.leases.items()
        }
