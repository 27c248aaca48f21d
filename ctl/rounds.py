"""The rounds of `lmpoolctl demo`: asks, prints the answers as they come, and adds up.

The first question goes ahead alone, so that some rank holds the shared prompt; all others of a
round go out together. The router then weighs, as it would for anybody, whether waiting at a rank
that holds the prompt is cheaper than computing it once more on an idle one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict

from ctl.conversation import SYSTEM, messages, questions_of
from ctl.printer import AnswerPrinter
from ctl.render import percent, plain, to_json
from ctl.results import LEAST_SAVED, Asked, by_rank, saved_share, sum_up
from lmpoold.client import PoolClient
from lmpoold.protocol.errors import RequestFailed
from lmpoold.protocol.explanation import Explanation, read_explanation
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Usage
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore

MAX_TOKENS = 40
MEASURING_SALT = "demo-measures"


class Demo:
    """Asks all the questions of the demo in a pool that is up."""

    def __init__(self, url: str, rounds: int, say: Callable[[str], None], *, as_json: bool) -> None:
        """Ask the pool at `url`; `say` prints a remark, with `as_json` not on standard output."""
        self._url = url
        self._rounds = rounds
        self._say = say
        self._json = as_json
        self._asked: list[Asked] = []
        self._failed = 0
        self._shared_tokens = 0

    async def run(self) -> int:
        """Ask, sum up, and return the exit code: 0 if all was answered and enough was saved."""
        redis = open_redis(self._url)
        store = PoolStore(redis, Keyspace())
        try:
            async with PoolClient(self._url) as client:
                await self._measure(client)
                for number in range(self._rounds if self._shared_tokens else 0):
                    await self._round(client, store, number)
        finally:
            await redis.aclose()
        return self._sum_up()

    async def _measure(self, client: PoolClient) -> None:
        """Learn how long the shared prompt is, under a salt of its own: nothing gets cached for us.

        The template's opening of the answer is counted too, a handful of tokens.
        """
        alone = [{"role": "system", "content": SYSTEM}]
        try:
            answer = await client.generate(messages=alone, max_tokens=1, salt=MEASURING_SALT)
        except RequestFailed as error:
            self._failed += 1
            self._say(f"the shared prompt was refused: {error}")
            return
        assert answer.usage is not None
        self._shared_tokens = answer.usage.prompt_tokens
        self._say(f"every question shares a system prompt of {self._shared_tokens} tokens")

    async def _round(self, client: PoolClient, store: PoolStore, number: int) -> None:
        self._say(f"\nround {number + 1}")
        questions = questions_of(number)
        before = len(self._asked)
        ahead = 1 if number == 0 else 0
        for question in questions[:ahead]:
            await self._ask(client, store, number, question, turn=None)
        turns = [asyncio.Event() for _ in questions]
        turns[ahead].set()
        try:
            async with asyncio.TaskGroup() as group:
                for at in range(ahead, len(questions)):
                    following = turns[at + 1] if at + 1 < len(questions) else None
                    ask = self._ask(client, store, number, questions[at], turns[at], following)
                    group.create_task(ask, name=f"question {at}")
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        asked = self._asked[before:]
        if asked:
            share = saved_share(asked, self._shared_tokens)
            self._say(f"round {number + 1}: {percent(share)} of the shared prompt was cached")

    async def _ask(
        self,
        client: PoolClient,
        store: PoolStore,
        number: int,
        question: str,
        turn: asyncio.Event | None,
        following: asyncio.Event | None = None,
    ) -> None:
        """Ask one question; answers are read together but printed one after the other."""
        printer = AnswerPrinter(question, silent=self._json)
        sent_s = time.monotonic()
        first_s, usage = 0.0, None
        try:
            request_id = await client.submit(messages=messages(question), max_tokens=MAX_TOKENS)
            printing = asyncio.create_task(printer.run(turn), name="print answer")
            try:
                async for output in client.stream(request_id):
                    first_s = first_s or time.monotonic() - sent_s
                    usage = output.usage or usage
                    printer.add(output.text)
            finally:
                printer.end()
                await printing
            found = read_explanation(await store.explain(request_id))
            self._note(self._record(number, question, printer.text, found, usage, first_s))
        except RequestFailed as error:
            self._failed += 1
            self._say(f"  failed: {error}")
        finally:
            if following is not None:
                following.set()

    def _record(
        self,
        number: int,
        question: str,
        answer: str,
        found: Explanation,
        usage: Usage | None,
        first_token_s: float,
    ) -> Asked:
        assert usage is not None  # the last output of a stream carries it
        assert found.rank is not None
        return Asked(
            id=found.facts["id"],
            round=number + 1,
            question=question,
            answer=answer,
            rank=found.rank,
            reason=found.reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            saved_tokens=min(usage.cached_tokens, self._shared_tokens),
            output_tokens=usage.completion_tokens,
            first_token_s=round(first_token_s, 4),
        )

    def _note(self, asked: Asked) -> None:
        self._asked.append(asked)
        if self._json:
            print(to_json(asdict(asked)), flush=True)
            return
        print(
            f"     rank {asked.rank}, {asked.reason}: {asked.prompt_tokens} prompt tokens, "
            f"{asked.cached_tokens} cached; first token {asked.first_token_s:.2f} s",
            flush=True,
        )

    def _sum_up(self) -> int:
        summary = sum_up(self._asked, shared_tokens=self._shared_tokens, failed=self._failed)
        if self._json:
            print(to_json({"summary": {**asdict(summary), "well": summary.well}}), flush=True)
        elif self._asked:
            print(
                f"\n{plain(by_rank(self._asked))}\n\n"
                f"saved {summary.saved_tokens} of {summary.prompt_tokens} prompt tokens; from the "
                f"second round on {percent(summary.later_share)} of the shared prompt was cached\n"
                f"time to the first token: {summary.first_round_s:.2f} s in round 1, "
                f"{summary.later_s:.2f} s later (mean)",
                flush=True,
            )
        if not summary.well:
            self._say(
                f"the demo failed: {self._failed} requests failed, and from the second round on "
                f"{percent(summary.later_share)} of the shared prompt was cached "
                f"({percent(LEAST_SAVED)} is the least)"
            )
        return 0 if summary.well else 1
