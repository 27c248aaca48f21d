"""From an entry to a route call: what the reader packs, names and refuses."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lmpoold.core.admission import Limits
from lmpoold.daemon.reading import Reader, Refused
from lmpoold.protocol.hashing import chain_hashes, token_bytes, unpack_tokens
from lmpoold.text.tokenizer import TextModel

BLOCK = 4
LETTERS = {letter: number for number, letter in enumerate("abcdefgh")}


def reader_of(vocab_size: int) -> Reader:
    """A model whose tokens are the letters a to h, with logits for `vocab_size` of them."""
    tokenizer = Tokenizer(models.WordLevel(vocab=LETTERS, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    text = TextModel(tokenizer, None, vocab_size=vocab_size, max_model_len=64, stop_ids=frozenset())
    limits = Limits(64, vocab_size)
    return Reader(
        text,
        model="toy",
        fingerprint="f0",
        block_size=BLOCK,
        limits=limits,
        ids_fit=text.ids_fit,
    )


def read(reader: Reader, **fields: str):
    values = {name.encode(): value.encode() for name, value in fields.items()}
    (one,) = reader.read([("1700000000000-0", values)])
    return one


@pytest.mark.parametrize("given", [{"prompt": "abcdefgha"}, {"tokens": "[0,1,2,3,4,5,6,7,0]"}])
def test_a_prompt_is_packed_and_its_blocks_are_named(given):
    reader, tokens = reader_of(8), [0, 1, 2, 3, 4, 5, 6, 7, 0]
    call = read(reader, max_tokens="3", **given)
    assert call.tokens == token_bytes(tokens)
    assert call.prompt_tokens == 9
    assert call.hashes == chain_hashes(tokens, BLOCK, reader.root(""))


@pytest.mark.parametrize("given", [{"prompt": "abcdh"}, {"tokens": "[0,7]"}])
def test_an_id_that_the_model_has_no_logit_for_is_refused_whoever_gave_it(given):
    refused = read(reader_of(7), max_tokens="3", **given)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.message) == (
        "invalid_request",
        "token id 7 lies outside the vocabulary of 7",
    )


def test_a_model_knows_whether_its_own_ids_fit():
    assert [reader_of(size)._text.ids_fit for size in (7, 8)] == [False, True]


def test_a_request_that_moves_on_takes_what_it_has_emitted_along():
    reader = reader_of(8)
    call = read(reader, prompt="abcde", max_tokens="9", salt="s")
    again = reader.resume("a", call.payload.encode(), call.tokens, 1, b"6 7 0 ")
    assert unpack_tokens(again.tokens) == (0, 1, 2, 3, 4, 6, 7, 0)
    assert (again.prompt_tokens, again.max_tokens, again.attempt) == (8, 6, 1)
    assert again.hashes == chain_hashes([0, 1, 2, 3, 4, 6, 7, 0], BLOCK, reader.root("s"))
    assert json.loads(again.payload)["prompt_tokens"] == 5
    third = reader.resume("a", again.payload.encode(), again.tokens, 2, b"6 7 0 1 ")
    assert unpack_tokens(third.tokens) == (0, 1, 2, 3, 4, 6, 7, 0, 1)
