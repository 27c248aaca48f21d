"""A paged step gives the tokens of `transformers` itself, whatever the pool did before."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from lmpoold.text.folder import resolve
from lmpoold.text.tokenizer import TextModel
from workers.model.batch import Row
from workers.model.weights import load

FAMILIES = ["tiny-qwen3", "tiny-llama", "tiny-qwen2", "tiny-mistral", "tiny-gemma"]
COUNT = 20


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(f"{length}/{seed}")
    return [draw.randrange(512) for _ in range(length)]


@pytest.fixture(params=FAMILIES)
def pair(request, random_model):
    return random_model(request.param)


def test_greedy_reference_output_varies(pair, reference):
    """Parity of a constant output would say nothing, and that of tied logits would be luck."""
    output = reference(pair[1], prompt(37), COUNT)
    assert len(set(output)) > COUNT // 2
    with torch.inference_mode():
        logits = pair[1](torch.tensor([prompt(37) + output])).logits[0, 36:]
    best, second = logits.topk(2).values.T
    assert ((best - second) > 1e-4 * best.abs()).all()


def test_a_cold_prompt_matches_generate(pair, reference, paged):
    engine = paged(pair[0])
    sequence = engine.add(prompt(37), COUNT)
    engine.finish([sequence], COUNT)
    assert sequence.output == reference(pair[1], prompt(37), COUNT)


@pytest.mark.better(1)
def test_logits_match_those_of_the_plain_model(pair, paged):
    tokens = prompt(50)
    engine = paged(pair[0])
    table = [engine.free.pop() for _ in range(4)]
    rows = [Row(tokens=tokens[i : i + 1], start=i, block_table=table) for i in range(33, 50)]
    engine.runner.step([Row(tokens=tokens[:33], start=0, block_table=table, samples=False)])
    got = torch.cat([engine.runner.step([row]) for row in rows])
    with torch.inference_mode():
        expected = pair[1](torch.tensor([tokens])).logits[0, 33:]
    assert (got - expected).abs().max() < 1e-3 * expected.abs().max()


@pytest.mark.better(1)
def test_a_prefix_hit_matches_generate(pair, reference, paged):
    engine, shared = paged(pair[0]), prompt(32)
    first = engine.add(shared + prompt(5, 1), COUNT)
    engine.finish([first], 3)
    second = engine.add(shared + prompt(9, 2), COUNT, shared=first.table[:2])
    assert second.computed == 32
    engine.finish([first, second], COUNT)
    assert first.output == reference(pair[1], shared + prompt(5, 1), COUNT)
    assert second.output == reference(pair[1], shared + prompt(9, 2), COUNT)


def test_a_fully_cached_prompt_recomputes_one_token_and_leaves_the_shared_blocks_alone(
    pair, reference, paged
):
    engine, tokens = paged(pair[0]), prompt(48)
    first = engine.add(tokens, COUNT)
    engine.finish([first], COUNT)
    before = engine.pool.gather(first.table[:3])
    second = engine.add(tokens, COUNT, shared=first.table[:3], write_from=48)
    assert second.computed == 47
    engine.finish([second], COUNT)
    assert second.output == first.output == reference(pair[1], tokens, COUNT)
    assert torch.equal(engine.pool.gather(first.table[:3]), before)


@pytest.mark.better(1)
@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_a_chunked_prefill_matches_generate(pair, reference, paged, chunk):
    engine = paged(pair[0])
    sequence = engine.add(prompt(77), COUNT)
    engine.finish([sequence], COUNT, chunk)
    assert sequence.output == reference(pair[1], prompt(77), COUNT)


def test_mixed_batches_of_eight_lengths_match_generate(pair, reference, paged):
    engine = paged(pair[0])
    prompts = [prompt(length) for length in (1, 2, 15, 16, 17, 60, 121, 300)]
    sequences = [engine.add(tokens, COUNT) for tokens in prompts]
    engine.finish(sequences[:3], 4)
    engine.finish(sequences[:6], 7, chunk=16)  # prefill of three beside decode of three
    engine.finish(sequences, COUNT, chunk=50)
    for sequence, tokens in zip(sequences, prompts, strict=True):
        assert sequence.output == reference(pair[1], tokens, COUNT), len(tokens)


def test_blocks_can_move_in_mid_generation_and_nothing_reads_where_they_were(
    pair, reference, paged
):
    engine = paged(pair[0])
    sequences = [engine.add(prompt(70), COUNT), engine.add(prompt(20), COUNT)]
    engine.finish(sequences, 8)
    moved = sequences[0]
    old, moved.table = moved.table, [engine.free.pop() for _ in moved.table]
    engine.pool.scatter(moved.table, engine.pool.gather(old))
    engine.pool.data[old] = float("nan")
    engine.finish(sequences, COUNT)
    assert moved.output == reference(pair[1], prompt(70), COUNT)
    assert sequences[1].output == reference(pair[1], prompt(20), COUNT)


def test_unused_slots_and_the_trash_block_are_never_read(pair, reference, paged):
    engine = paged(pair[0])
    engine.pool.data.fill_(float("nan"))
    lengths = (5, 36, 43, 100)  # 36 and 43 decode side by side, padded to one length
    sequences = [engine.add(prompt(length), COUNT) for length in lengths]
    engine.finish(sequences, COUNT, chunk=50)
    for sequence, length in zip(sequences, lengths, strict=True):
        assert sequence.output == reference(pair[1], prompt(length), COUNT)


def test_two_runners_step_on_two_threads_without_meeting(random_model, reference, paged):
    engines = {name: paged(random_model(name)[0]) for name in ("tiny-qwen3", "tiny-llama")}
    outputs: dict[str, list[int]] = {}
    together = threading.Barrier(2)

    def generate(name: str) -> None:
        sequence = engines[name].add(prompt(40), COUNT)
        together.wait()
        engines[name].finish([sequence], COUNT)
        outputs[name] = sequence.output

    threads = [threading.Thread(target=generate, args=(name,)) for name in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {
        name: reference(random_model(name)[1], prompt(40), COUNT) for name in engines
    }


def test_a_model_saved_to_a_folder_is_served_from_its_path(
    tmp_path, random_model, reference, paged
):
    plain = random_model("tiny-llama")[1]
    plain.save_pretrained(tmp_path)
    loaded = load(resolve(str(tmp_path), cache=tmp_path), dtype="float32")
    engine = paged(loaded)
    sequence = engine.add(prompt(37), COUNT)
    engine.finish([sequence], COUNT)
    assert sequence.output == reference(plain, prompt(37), COUNT)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_model_answers_as_transformers_does(demo_folder, reference, paged):
    text = TextModel.load(demo_folder)
    loaded = load(demo_folder, dtype="float32")
    plain = load(demo_folder, dtype="float32").model
    questions = ["What is the capital of France?", "Name three colours of the rainbow."]
    prompts = [text.encode_chat([{"role": "user", "content": q}]) for q in questions]
    engine = paged(loaded)
    sequences = [engine.add(tokens, 24) for tokens in prompts]
    engine.finish(sequences, 24, chunk=16)
    for sequence, tokens in zip(sequences, prompts, strict=True):
        assert sequence.output == reference(plain, tokens, 24)
    answer = sequences[0].output
    end = next(i for i, token in enumerate(answer) if token in text.stop_ids)
    assert text.decode(answer[:end]) == "The capital of France is Paris."
