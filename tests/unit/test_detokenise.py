"""Exactness is judged against `tokenizers` itself: small vocabularies under real decoders."""

from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from workers.core.detokenise import MAX_RUN_TOKENS, Detokeniser, byte_tokens

BAD = "\ufffd"
CORPUS = (
    "The quick brown fox. 你好,世界!こんにちは 안녕하세요 Привет नमस्ते สวัสดี "
    "👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 e\u0301 ﷽ 𐍈 don't   stop\n\ttab \u200b\ufffd end"
)
PIECES = ["▁", "▁▁", "▁Hello", "Hello", "▁world", "wor", "ld", ".", ",", "你", "👍", BAD, "\n"]


def byte_level_alphabet() -> dict[int, str]:
    """Byte -> the character that stands for it in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + n) for n, byte in enumerate(others)
    }


def byte_level() -> Tokenizer:
    letters = byte_level_alphabet()
    names = [letters[byte] for byte in range(256)]
    for text in ("hello", " hello", "你好", " 👍", "👩‍👩‍👧"):
        raw = text.encode()
        names += ["".join(letters[byte] for byte in raw[:cut]) for cut in range(2, len(raw) + 1)]
        names += ["".join(letters[byte] for byte in raw[cut:]) for cut in range(1, len(raw) - 1)]
    names.append("<0x41>")
    vocab = {name: token for token, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    return with_added_tokens(tokenizer)


def trained_byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    tokenizer.add_special_tokens(["<eos>", "<pad>"])
    return tokenizer


def byte_fallback(decoder: decoders.Decoder) -> Tokenizer:
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "<0xe4>", "", *PIECES]
    vocab = {name: token for token, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoder
    return with_added_tokens(tokenizer)


def llama() -> Tokenizer:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return byte_fallback(decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)]))


def gemma() -> Tokenizer:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return byte_fallback(decoders.Sequence(steps))


def metaspace() -> Tokenizer:
    vocab = {name: token for token, name in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="."))
    tokenizer.decoder = decoders.Metaspace()
    return with_added_tokens(tokenizer)


def wordpiece() -> Tokenizer:
    names = [
        "[UNK]",
        "do",
        "n't",
        "not",
        "'m",
        "'",
        ".",
        "?",
        "##ing",
        "##s",
        "##你",
        "你",
        BAD,
        "##",
    ]
    vocab = {name: token for token, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return with_added_tokens(tokenizer)


def word_end() -> Tokenizer:
    vocab = {name: token for token, name in enumerate(["lo", "low</w>", "</w>", "er</w>", "."])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.BPEDecoder()
    return with_added_tokens(tokenizer)


def no_decoder() -> Tokenizer:
    vocab = {name: token for token, name in enumerate(["a", "b", BAD, "你"])}
    return with_added_tokens(Tokenizer(models.WordLevel(vocab, unk_token="a")))


def with_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(["<eos>", "<pad>"])
    tokenizer.add_tokens([AddedToken("<tool> é", special=False), AddedToken("é", special=False)])
    return tokenizer


def decoder_of(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


TOKENIZERS = {
    build.__name__: build()
    for build in (
        byte_level,
        trained_byte_level,
        llama,
        gemma,
        metaspace,
        wordpiece,
        word_end,
        no_decoder,
    )
}
RUN_MAPS = {
    name: byte_tokens(tokenizer.get_vocab(), decoder_of(tokenizer))
    for name, tokenizer in TOKENIZERS.items()
}


def stream(name: str, ids: list[int]) -> list[str]:
    """The piece released by each token, and the flushed rest."""
    detokeniser = Detokeniser(decoder_of(TOKENIZERS[name]), RUN_MAPS[name])
    return [*map(detokeniser.push, ids), detokeniser.flush()]


def whole(name: str, ids: list[int]) -> str:
    return decoder_of(TOKENIZERS[name])(ids)


def byte_ids(name: str, raw: bytes) -> list[int]:
    if name == "byte_level":
        letters = byte_level_alphabet()
        return [TOKENIZERS[name].token_to_id(letters[byte]) for byte in raw]
    return [TOKENIZERS[name].token_to_id(f"<0x{byte:02X}>") for byte in raw]


@st.composite
def token_ids(draw: st.DrawFn, name: str) -> list[int]:
    """Ids with long repeats, byte runs of real text cut anywhere, ids outside the vocabulary."""
    size = TOKENIZERS[name].get_vocab_size()
    one = st.lists(st.integers(0, size + 3), max_size=12)
    repeated = st.tuples(st.integers(0, size - 1), st.integers(1, 40)).map(lambda t: [t[0]] * t[1])
    choices = [one, repeated]
    if name in ("byte_level", "llama", "gemma"):
        text = st.text(max_size=8) | st.sampled_from(CORPUS.split())
        valid = text.map(lambda t: byte_ids(name, t.encode("utf-8", "surrogatepass")))
        choices += [valid, valid.flatmap(lambda ids: st.integers(0, 3).map(lambda n: ids[n:]))]
        choices += [st.binary(max_size=20).map(lambda raw: byte_ids(name, raw))]
        specials = [TOKENIZERS[name].token_to_id(t) for t in ("<eos>", "<tool> é", "é")]
        choices += [st.sampled_from(specials).map(lambda token: [token])]
    return [token for part in draw(st.lists(st.one_of(choices), max_size=8)) for token in part]


def longest_byte_run(name: str, ids: list[int]) -> int:
    specials = {TOKENIZERS[name].token_to_id(t) for t in ("<eos>", "<pad>")}
    size = TOKENIZERS[name].get_vocab_size()
    shown = [token for token in ids if token not in specials and token < size]
    return max(
        accumulate(shown, lambda run, token: run + 1 if token in RUN_MAPS[name] else 0, initial=0)
    )


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@pytest.mark.bar(40)
def test_the_pieces_joined_are_the_text_of_all_tokens(name: str, data: st.DataObject):
    ids = data.draw(token_ids(name))
    if longest_byte_run(name, ids) < MAX_RUN_TOKENS:
        assert "".join(stream(name, ids)) == whole(name, ids)


@pytest.mark.parametrize("name", ["byte_level", "llama", "gemma"])
@given(raw=st.binary(max_size=60))
@example(raw=b"\xe4\xbd\xa0\xe4")
@example(raw=b"\xf0\x80\x80")
@example(raw=b"\xed\xa0\x80")
@example(raw=b"\xf4\x90\x80\x80A")
@example(raw=b"\x80" * 50)
@example(raw=b" \xc3\xa9")
def test_any_bytes_come_out_as_the_decoder_shows_them(name: str, raw: bytes):
    ids = byte_ids(name, raw)
    assert "".join(stream(name, ids)) == whole(name, ids)
    if name == "byte_level":
        assert "".join(stream(name, ids)) == raw.decode("utf-8", "replace")


@pytest.mark.parametrize("name", ["trained_byte_level", "byte_level"])
@given(text=st.text(max_size=40) | st.just(CORPUS))
@pytest.mark.bar(40)
def test_text_split_inside_its_characters_comes_out_whole(name: str, text: str):
    raw = text.encode("utf-8", "replace")
    ids = byte_ids(name, raw) if name == "byte_level" else TOKENIZERS[name].encode(text).ids
    assert "".join(stream(name, ids)) == raw.decode()


@pytest.mark.parametrize("special", ["<eos>", "<pad>"])
@pytest.mark.parametrize("name", ["byte_level", "llama", "gemma"])
def test_a_skipped_special_token_does_not_part_the_bytes_around_it(name: str, special: str):
    lead, *rest = byte_ids(name, "好".encode())
    ids = [lead, TOKENIZERS[name].token_to_id(special), *rest]
    assert "".join(stream(name, ids)) == whole(name, ids) == "好"


def test_the_space_in_front_of_a_word_survives_a_window_that_begins_with_it():
    word = TOKENIZERS["llama"].token_to_id("▁world")
    assert "".join(stream("llama", [word] * 100)) == ("world " * 100).rstrip()


@pytest.mark.parametrize("name", ["byte_level", "llama"])
def test_text_without_split_characters_is_released_token_by_token(name: str):
    text = {"byte_level": "Ġhello", "llama": "▁world"}[name]
    pieces = stream(name, [TOKENIZERS[name].token_to_id(text)] * 30)
    assert all(pieces[:-1])
    assert pieces[-1] == ""


@given(ids=token_ids("byte_level"))
def test_a_byte_level_text_is_never_more_than_one_character_behind(ids: list[int]):
    released = ""
    for count, piece in enumerate(stream("byte_level", ids)[:-1], start=1):
        released += piece
        shown = whole("byte_level", ids[:count])
        assert shown.startswith(released)
        assert len(shown) - len(released) <= 1


def test_a_broken_byte_run_is_released_at_once_however_long():
    ids = byte_ids("llama", b"\xe4\xbd" + b"\xff" * 300)
    pieces = stream("llama", ids)
    assert pieces[:4] == ["", "", BAD * 3, BAD]
    assert "".join(pieces) == whole("llama", ids) == BAD * 302


def test_a_broken_byte_run_at_the_beginning_keeps_the_space_after_it():
    ids = [*byte_ids("llama", b"\xff\xff"), TOKENIZERS["llama"].token_to_id("▁world")]
    assert "".join(stream("llama", ids)) == whole("llama", ids) == BAD * 2 + " world"


def test_an_empty_token_parts_the_bytes_around_it():
    ids = byte_ids("llama", "é".encode())
    ids.insert(1, TOKENIZERS["llama"].token_to_id(""))
    assert "".join(stream("llama", ids)) == whole("llama", ids) == BAD * 2


def test_a_byte_run_is_held_until_a_token_ends_it():
    ids = [*byte_ids("llama", "你好".encode()), TOKENIZERS["llama"].token_to_id(".")]
    assert stream("llama", ids) == [""] * 6 + ["你好.", ""]


@given(text=st.text("你好é👍 a", min_size=30, max_size=120))
def test_a_long_byte_run_of_text_comes_out_whole_and_never_far_behind(text: str):
    ids = byte_ids("gemma", text.encode())
    pieces = stream("gemma", [*ids, TOKENIZERS["gemma"].token_to_id("▁world")])
    assert "".join(pieces) == text + " world"
    released = accumulate(
        pieces[: len(ids)], lambda size, piece: size + len(piece.encode()), initial=0
    )
    assert all(count - size < MAX_RUN_TOKENS + 3 for count, size in enumerate(released))


def test_a_character_that_many_empty_tokens_follow_is_released():
    ids = [TOKENIZERS["wordpiece"].token_to_id(name) for name in (BAD, *["##"] * 20, ".")]
    pieces = stream("wordpiece", ids)
    assert pieces.index(BAD) < 20
    assert "".join(pieces) == whole("wordpiece", ids)


@pytest.mark.parametrize("end", [[], ["."]])
def test_only_the_bytes_after_the_released_characters_of_a_long_run_are_replaced(end: list[str]):
    count = MAX_RUN_TOKENS // 4 + 1
    ids = byte_ids("llama", "👍".encode() * count + b"\xf0\x9f")
    ids += [TOKENIZERS["llama"].token_to_id(name) for name in end]
    pieces = stream("llama", ids)
    assert pieces[MAX_RUN_TOKENS - 1] == "👍" * (MAX_RUN_TOKENS // 4)
    held = 4 * count + 2 - MAX_RUN_TOKENS
    assert "".join(pieces) == "👍" * (MAX_RUN_TOKENS // 4) + BAD * held + "".join(end)


def test_a_long_run_that_breaks_goes_on_byte_by_byte_until_it_ends():
    raw = "👍".encode() * (MAX_RUN_TOKENS // 4) + b"\xf0A" + b"B" * 40
    ids = [*byte_ids("llama", raw), TOKENIZERS["llama"].token_to_id("▁world")]
    expected = "👍" * (MAX_RUN_TOKENS // 4) + BAD * 42 + " world"
    assert "".join(stream("llama", ids)) == expected


@pytest.mark.better(9)
@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_the_work_for_a_token_does_not_grow_with_the_text(name: str, data: st.DataObject):
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return whole(name, ids)

    detokeniser = Detokeniser(decode, RUN_MAPS[name])
    for token in data.draw(token_ids(name)) * 3:
        detokeniser.push(token)
    assert longest <= 17 + MAX_RUN_TOKENS + 3


def test_byte_tokens_are_found_only_where_the_decoder_falls_back_to_them():
    assert RUN_MAPS["byte_level"] == {}  # though a token is named <0x41>
    assert sorted(RUN_MAPS["llama"].values()) == sorted([*range(256), 0xE4])
    assert RUN_MAPS["llama"][TOKENIZERS["llama"].token_to_id("<0x20>")] == 0x20


@given(data=st.data())
def test_an_answer_is_resumed_by_pushing_its_tokens_again(data: st.DataObject):
    ids = data.draw(token_ids("byte_level"))
    cut = data.draw(st.integers(0, len(ids)))
    resumed = stream("byte_level", ids)
    assert "".join(resumed[:cut]) + "".join(resumed[cut:]) == whole("byte_level", ids)


def test_a_vocabulary_without_the_probing_bytes_still_skips_special_tokens():
    vocab = {"<0xE4>": 0, "<0xBD>": 1, "<0xA0>": 2, "x": 3, "<unk>": 4}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<eos>"])
    decode = decoder_of(tokenizer)
    detokeniser = Detokeniser(decode, byte_tokens(tokenizer.get_vocab(), decode))
    pieces = [detokeniser.push(token) for token in (0, 5, 1, 2, 3)]
    assert pieces == ["", "", "", "", "你x"]
