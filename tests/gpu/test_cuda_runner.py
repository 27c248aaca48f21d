"""A GPU runner gives the tokens of `transformers`, from graphs or without, whatever a step is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from transformers import GenerationConfig

from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.request import Sampling
from lmpoold.text.folder import resolve
from workers.model.batch import Row
from workers.model.device_sample import DeviceSampler
from workers.model.sample import SamplingRow
from workers.model.weights import load

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

FAMILIES = ["tiny-qwen3", "tiny-llama", "tiny-qwen2", "tiny-mistral", "tiny-gemma"]
COUNT = 20
GREEDY = Sampling(max_tokens=1)


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(f"{length}/{seed}")
    return [draw.randrange(512) for _ in range(length)]


@dataclass
class Running:
    tokens: list[int]
    table: list[int]
    computed: int = 0
    write_from: int = 0
    sampling: Sampling = GREEDY
    awaited: bool = False  # its last token is on the device only
    prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt :]


class Loop:
    """A little engine that launches a step before it has read the one before."""

    def __init__(self, loaded, *, block_size=16, blocks=200, ahead=True, **build) -> None:
        from workers.model.cuda_build import build_cuda_runner

        self.runner, self.pool = build_cuda_runner(
            loaded,
            block_size=block_size,
            blocks=blocks,
            max_rows=12,
            max_tokens=512,
            max_model_len=512,
            make_sampler=DeviceSampler,
            **build,
        )
        self.ahead = ahead
        self.free = list(range(min(self.pool.num_blocks, 1000)))
        random.Random(5).shuffle(self.free)
        self.before: list[Running] = []
        self.flight = None

    def add(self, tokens, room, *, shared=(), write_from=0, sampling=GREEDY) -> Running:
        count = -(-(len(tokens) + room) // self.pool.block_size) - len(shared)
        table = [*shared, *(self.free.pop() for _ in range(count))]
        computed = min(len(shared) * self.pool.block_size, len(tokens) - 1)
        return Running(list(tokens), table, computed, write_from, sampling)

    def collect(self):
        """Read what is under way."""
        if self.flight is None:
            return None
        sampled = self.flight.result()
        for sequence, token in zip(self.before, sampled.tokens, strict=True):
            sequence.tokens[len(sequence.tokens) - 1] = token
            sequence.awaited = False
        self.flight = None
        return sampled

    def step(self, *work):
        """Launch so many tokens of each sequence, then read the step before."""
        rows = []
        for sequence, count in work:
            end = sequence.computed + count
            waits = sequence.awaited and end == len(sequence.tokens)
            rows.append(
                Row(
                    tokens=sequence.tokens[sequence.computed : end],
                    start=sequence.computed,
                    block_table=sequence.table,
                    write_from=sequence.write_from,
                    samples=end == len(sequence.tokens),
                    after=self.before.index(sequence) if waits else None,
                )
            )
            sequence.computed = end
        done = [sequence for (sequence, _), row in zip(work, rows, strict=True) if row.samples]
        sampling = [SamplingRow(sampling=s.sampling, index=len(s.output)) for s in done]
        flight = self.runner.launch(rows, sampling)
        sampled = self.collect()
        for sequence in done:
            sequence.tokens.append(-1)  # a number that is no token: it must not be used
            sequence.awaited = True
        self.before, self.flight = done, flight
        return self.collect() if not self.ahead else sampled

    def finish(self, sequences, count, chunk=10_000):
        while left := [s for s in sequences if len(s.output) < count]:
            work = [(s, min(chunk, len(s.tokens) - s.computed)) for s in left]
            self.step(*sorted(work, key=lambda pair: pair[1] > 1))
        self.collect()


@pytest.fixture(scope="module")
def model(cuda, tmp_path_factory):
    """Tiny models by name and type, loaded afresh for each user: fusing changes them."""

    def get(name, dtype="float32"):
        folder = resolve(f"random:{name}", cache=tmp_path_factory.mktemp("cache"))
        return load(folder, dtype=dtype, device=cuda)

    return get


@pytest.fixture(scope="module")
def reference(cuda, model):
    """Greedy output of `transformers` itself."""
    kept: dict[str, torch.nn.Module] = {}

    def generate(name, tokens, count):
        if name not in kept:
            kept[name] = model(name).model
        settings = GenerationConfig(
            max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        ids = torch.tensor([list(tokens)], device=cuda)
        with torch.inference_mode():
            out = kept[name].generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=settings
            )
        return out[0, len(tokens) :].tolist()

    return generate


@pytest.mark.better(19)
@pytest.mark.parametrize("how", ["graphs", "eager", "plain", "not ahead"])
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_those_of_generate_cold_hit_chunked_and_mixed(model, reference, name, how):
    loop = Loop(model(name), graphs=how != "eager", fused=how != "plain", ahead=how != "not ahead")
    shared = prompt(32)
    first = loop.add(shared + prompt(5, 1), COUNT)
    loop.finish([first], 3)  # cold
    hit = loop.add(shared + prompt(9, 2), COUNT, shared=first.table[:2])
    whole = loop.add(shared, COUNT, shared=first.table[:2], write_from=32)
    others = [loop.add(prompt(length), COUNT) for length in (1, 2, 15, 16, 17, 60, 121, 300)]
    loop.finish([first, hit, whole, *others[:3]], 5, chunk=16)
    loop.finish([first, hit, whole, *others[:6]], 9, chunk=7)
    everyone = [first, hit, whole, *others]
    loop.finish(everyone, COUNT, chunk=50)
    for sequence in everyone:
        tokens = sequence.tokens[: sequence.prompt]
        assert sequence.output == reference(name, tokens, COUNT), len(tokens)


@pytest.mark.parametrize("how", ["graphs", "eager", "plain"])
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_rows_that_read_a_prefix_together_give_the_tokens_of_generate(
    model, reference, monkeypatch, name, how
):
    from workers.model import cuda_runner, sharing

    monkeypatch.setattr(sharing, "LEAST_TOKENS", 1)
    found = []

    def noting(*args):
        found.append(sharing.find_shared(*args))
        return found[-1]

    monkeypatch.setattr(cuda_runner, "find_shared", noting)
    loop = Loop(model(name), graphs=how != "eager", fused=how != "plain")
    prefix = prompt(200)
    first = loop.add(prefix, COUNT)
    loop.finish([first], 2)
    hits = [
        loop.add(prefix[:192] + prompt(n, n), COUNT, shared=first.table[:12], write_from=192)
        for n in (1, 2, 30, 31, 40, 55)
    ]
    alone = [loop.add(prompt(n), COUNT) for n in (5, 90, 130)]
    loop.finish([first, *hits[:5], alone[0]], 6, chunk=60)
    everyone = [first, *hits, *alone]
    loop.finish(everyone, COUNT, chunk=60)
    tiles = [tile for tiles in found for tile in tiles]
    assert {tile.tokens for tile in tiles} == {192}
    assert max(len(tile.rows) for tile in tiles) == 7
    for sequence in everyone:
        tokens = sequence.tokens[: sequence.prompt]
        assert sequence.output == reference(name, tokens, COUNT), len(tokens)


@pytest.mark.parametrize("block_size", [16, 48, 64, 256])
def test_any_block_size_gives_the_same_tokens(model, reference, block_size):
    loop = Loop(model("tiny-qwen3"), block_size=block_size, blocks=60)
    sequences = [loop.add(prompt(length), COUNT) for length in (1, 63, 64, 65, 290)]
    loop.finish(sequences, COUNT, chunk=100)
    for sequence in sequences:
        tokens = sequence.tokens[: sequence.prompt]
        assert sequence.output == reference("tiny-qwen3", tokens, COUNT)


def test_a_shared_block_is_not_written_again(model):
    loop = Loop(model("tiny-llama"))
    first = loop.add(prompt(48), COUNT)
    loop.finish([first], 2)
    before = loop.pool.gather(first.table[:3])
    second = loop.add(prompt(48), COUNT, shared=first.table[:3], write_from=48)
    loop.finish([second], COUNT)
    assert torch.equal(loop.pool.gather(first.table[:3]), before)


@pytest.mark.parametrize("fused", [True, False])
def test_unused_slots_are_never_read(model, reference, fused):
    loop = Loop(model("tiny-qwen3"), fused=fused)
    loop.pool.data.fill_(float("nan"))
    sequences = [loop.add(prompt(length), COUNT) for length in (5, 36, 43, 100)]
    loop.finish(sequences, COUNT, chunk=50)
    for sequence in sequences:
        tokens = sequence.tokens[: sequence.prompt]
        assert sequence.output == reference("tiny-qwen3", tokens, COUNT)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_draw_depends_on_its_own_row_alone(model, graphs):
    drawn = Sampling(max_tokens=1, temperature=0.8, top_p=0.9, seed=7)

    def generate(neighbours):
        loop = Loop(model("tiny-qwen3"), graphs=graphs)
        mine = loop.add(prompt(30), COUNT, sampling=drawn)
        loop.finish([mine, *(loop.add(prompt(9, n), COUNT) for n in range(neighbours))], COUNT)
        return mine.output

    alone = generate(0)
    assert len(set(alone)) > 3
    assert generate(5) == alone


def test_logprobs_come_for_who_asked(model):
    loop = Loop(model("tiny-llama"), ahead=False)
    asking = loop.add(prompt(20), 2, sampling=Sampling(max_tokens=1, logprobs=3))
    silent = loop.add(prompt(11), 2)
    sampled = loop.step((asking, 20), (silent, 11))
    found, nothing = sampled.logprobs
    assert nothing is None
    assert found.top[0] == (sampled.tokens[0], pytest.approx(found.chosen))
    assert found.chosen < 0.0
    assert len(found.top) == 3


def test_blocks_fill_what_the_memory_share_leaves_and_a_step_still_fits(model, cuda):
    total = torch.cuda.get_device_properties(cuda).total_memory

    def taken_by_others():
        return total - torch.cuda.mem_get_info(cuda)[0] - torch.cuda.memory_reserved(cuda)

    tried = []
    for _ in range(20):  # tests beside this one take and give back memory of the same GPU
        others = taken_by_others()
        share = (others + torch.cuda.memory_reserved(cuda) + 4 * 2**30) / total
        loop = Loop(model("tiny-qwen3"), blocks=0, memory_share=share)
        laid_out = loop.pool.num_blocks * loop.pool.block_bytes
        tried.append((laid_out, taken_by_others() - others))
        # what came and went in between shows in neither, so the size has its tries as well
        if abs(tried[-1][1]) < 2**28 and 1.5 * 2**30 < laid_out < 4 * 2**30:
            break
    else:
        pytest.fail(f"the pool's bytes, and what others took meanwhile: {tried}")
    sequences = [loop.add(prompt(60, n), COUNT) for n in range(8)]
    loop.finish(sequences, COUNT)


def test_too_little_memory_is_told_with_numbers_and_the_setting(model):
    with pytest.raises(ConfigError, match=r"free after the weights.*lower --max-batched-tokens"):
        Loop(model("tiny-qwen3"), blocks=0, memory_share=0.001)
    with pytest.raises(ConfigError, match=r"laying out .* KV blocks.*GiB.*lower --blocks"):
        Loop(model("tiny-qwen3"), blocks=10**9)


def test_a_step_beyond_the_runners_limits_is_refused(model):
    loop = Loop(model("tiny-qwen3"))
    rows = [Row(tokens=[1], start=0, block_table=[0]) for _ in range(13)]
    with pytest.raises(ValueError, match="does not fit"):
        loop.runner.launch(rows, [SamplingRow(sampling=GREEDY, index=0)] * 13)
