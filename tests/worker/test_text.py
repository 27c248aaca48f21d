"""Names, tokens, templates and fingerprints agree with `transformers` and across processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from lmpoold.protocol.errors import ConfigError, InvalidRequest
from lmpoold.text.fingerprint import fingerprint, kv_geometry
from lmpoold.text.folder import ModelFolder, cache_root, resolve
from lmpoold.text.shapes import SHAPES
from lmpoold.text.template import ChatTemplate
from lmpoold.text.tokenizer import TextModel

USER = {"role": "user", "content": "Why is the sky blue?"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "Scattering."},
    {"role": "user", "content": "<b>Really</b> & <|im_end|>?"},
]
TEXTS = [
    "",
    " ",
    "Hello  world, it's 2026!\n\tdéjà vu 🚀",
    "def f(x):\n    return x ** 2  # ☃\n",
    "<|im_start|>user\nhi<|im_end|>",
    "日本語のテキスト and العربية",
    "a" * 500,
    "\x00\x01 weird \u200b\ufeff",
]


def text_model(shape: str = "tiny-qwen3") -> TextModel:
    return TextModel.load(resolve(f"random:{shape}", cache=Path("unused")))


def make_folder(path: Path, **files: object) -> ModelFolder:
    """Write a folder with a small tokenizer: bytes of ASCII, `<s>` (0), `</s>` (1), `<end>` (2)."""
    tokenizer = Tokenizer(
        models.BPE(vocab={"<s>": 0, "</s>": 1, "<end>": 2}, merges=[], unk_token="</s>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", "<end>")])
    tokenizer.add_tokens(list("abc"))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    contents = {
        "config": {**SHAPES["tiny-llama"].config(), "eos_token_id": None},
        "tokenizer_config": {"bos_token": "<s>", "eos_token": {"content": "</s>"}},
        **files,
    }
    for name, value in contents.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return ModelFolder(name=str(path), path=path)


# names


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("demo", "lmpool-worker prepare --model demo"),
        ("random:huge", "the shapes are tiny-qwen3, tiny-llama"),
        ("missing.gguf", "no such file"),
        ("org/never-heard-of-it", "check the name, the network and HF_TOKEN"),
        ("what is this", "give `demo`, `random:<shape>`, a .gguf file"),
        ("{tmp}", "no config.json"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_to_do(name, cure, tmp_path):
    with pytest.raises(ConfigError, match=cure):
        resolve(name.format(tmp=tmp_path), cache=tmp_path)


def test_a_local_folder_is_taken_as_it_is(tmp_path):
    make_folder(tmp_path / "m")
    assert resolve(str(tmp_path / "m"), cache=tmp_path).path == tmp_path / "m"


def test_the_cache_lies_where_the_environment_says():
    assert cache_root({"LMPOOL_CACHE": "/x/y"}) == Path("/x/y")
    assert cache_root({}) == cache_root({"LMPOOL_CACHE": ""}) == Path.home() / ".cache/lmpool"


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_config_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        resolve(str(tmp_path), cache=tmp_path).config()


# tokens


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_demo_tokenizer_gives_the_ids_and_texts_of_transformers(demo_folder):
    ours, theirs = TextModel.load(demo_folder), AutoTokenizer.from_pretrained(demo_folder.path)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == expected


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_demo_chat_gives_the_ids_of_transformers(demo_folder):
    ours, theirs = TextModel.load(demo_folder), AutoTokenizer.from_pretrained(demo_folder.path)
    for chat in ([USER], CHAT, CHAT[1:], [{**USER, "content": text} for text in TEXTS]):
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert ours.encode_chat(chat) == expected


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_demo_stops_where_its_turns_end(demo_folder):
    ours, theirs = TextModel.load(demo_folder), AutoTokenizer.from_pretrained(demo_folder.path)
    assert ours.stop_ids == {theirs.convert_tokens_to_ids("<|im_end|>")}
    assert (ours.vocab_size, ours.max_model_len) == (49152, 8192)


@given(st.text())
def test_the_byte_tokenizer_loses_nothing(text):
    model = text_model()
    ids = model.encode(text)
    assert ids == list(text.encode())
    assert model.decode(ids) == text


@pytest.mark.parametrize("shape", ["tiny-gemma", "qwen3-0.6b"])
def test_ids_past_the_bytes_have_no_text(shape):
    model = text_model(shape)
    assert model.vocab_size == SHAPES[shape].vocab_size
    assert model.decode([72, 256, 257, 300, model.vocab_size - 1, 105]) == "Hi"


def test_the_byte_chat_marks_its_turns_and_ends_where_the_answer_begins():
    model = text_model()
    ids = model.encode_chat([USER])
    assert ids == [
        *(257, *b"user\nWhy is the sky blue?", 256, *b"\n"),
        *(257, *b"assistant\n"),
    ]
    assert model.stop_ids == {256}


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(InvalidRequest, match="surrogate"):
        text_model().encode("a\ud800")
    with pytest.raises(InvalidRequest, match="surrogate"):
        text_model().encode_chat([{"role": "user", "content": "\udfff"}])


def test_a_begin_token_is_added_to_a_prompt_but_not_a_second_time_to_a_chat(tmp_path):
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    folder = make_folder(
        tmp_path,
        tokenizer_config={"bos_token": "<s>", "eos_token": "</s>", "chat_template": template},
    )
    model = TextModel.load(folder)
    assert model.encode("ab") == [0, 3, 4]
    assert model.encode_chat([{"role": "user", "content": "ab"}]) == [0, 3, 4, 1]


def test_a_model_without_a_chat_template_asks_for_a_prompt(tmp_path):
    model = TextModel.load(make_folder(tmp_path))
    with pytest.raises(InvalidRequest, match="no chat template; send `prompt`"):
        model.encode_chat([USER])


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "template", "expected"),
    [
        (None, None, None, {1}),  # only the tokenizer names one
        (2, None, None, {2}),
        (2, [1, 2], None, {1, 2}),
        (None, 1, "{% for m in messages %}{{ m.content }} <end>\n{% endfor %}", {1, 2}),
        (1, 1, "{% for m in messages %}<end>{{ m.content }}{% endfor %}", {1}),
        (1, 1, "{{ raise_exception('no') }}", {1}),
    ],
)
def test_stop_ids_come_from_the_configs_and_from_the_template(
    tmp_path, config_eos, generation_eos, template, expected
):
    config = {**SHAPES["tiny-llama"].config(), "eos_token_id": config_eos}
    folder = make_folder(
        tmp_path, config=config, generation_config={"eos_token_id": generation_eos}
    )
    if template:
        (tmp_path / "chat_template.jinja").write_text(template)
    assert TextModel.load(folder).stop_ids == expected


def test_of_several_templates_the_default_is_taken(tmp_path):
    entries = [{"name": "tool", "template": "b"}, {"name": "default", "template": "a"}]
    model = TextModel.load(make_folder(tmp_path, tokenizer_config={"chat_template": entries}))
    assert model.encode_chat([USER]) == [3]


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json"])
def test_a_missing_file_is_named(tmp_path, file):
    folder = make_folder(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(ConfigError, match=file):
        TextModel.load(folder)
    with pytest.raises(ConfigError, match=file):
        fingerprint(folder)


def test_a_broken_tokenizer_and_a_config_without_sizes_are_named(tmp_path):
    folder = make_folder(tmp_path, config={"vocab_size": 8})
    with pytest.raises(ConfigError, match="positive max_position_embeddings, got None"):
        TextModel.load(folder)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        TextModel.load(folder)


# templates

RICH = """{%- set ns = namespace(seen=0) -%}
{{ bos_token }}
{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {% generation %}[{{ m.role }}] {{ m.content | trim }}{% endgeneration %}
    {{ m | tojson }}
    {% set ns.seen = ns.seen + 1 %}
    {% if ns.seen == 9 %}{% break %}{% endif %}
{% endfor %}
{{ messages | tojson(indent=2) }}{{ ns.seen }}{% if tools %}tools{% endif %}
{% if add_generation_prompt %}>{% endif %}{{ strftime_now('%Y') }}
"""


@pytest.mark.parametrize("prompt", [True, False])
def test_a_rich_template_renders_as_transformers_renders_it(prompt):
    ours = ChatTemplate(RICH, {"bos_token": "<s>"}).render(CHAT, add_generation_prompt=prompt)
    theirs, _ = render_jinja_template(
        [CHAT], chat_template=RICH, add_generation_prompt=prompt, bos_token="<s>"
    )
    assert ours == theirs[0]
    assert "<b>Really</b> &" in ours


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate"),
        ("{{ messages[0].nothing.more }}", "no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_is_the_askers_error(template, words):
    with pytest.raises(InvalidRequest, match=words):
        ChatTemplate(template, {}).render([USER], add_generation_prompt=True)


def test_a_template_that_is_no_jinja_is_the_operators_error():
    with pytest.raises(ConfigError, match="chat template is not valid"):
        ChatTemplate("{% for %}", {})


# fingerprints


def test_the_fingerprint_is_the_same_in_other_interpreters(tmp_path):
    folder = make_folder(tmp_path)
    program = (
        "import sys; from pathlib import Path\n"
        "from lmpoold.text.folder import resolve\n"
        "from lmpoold.text.fingerprint import fingerprint\n"
        "import lmpoold.text.tokenizer\n"
        "for name in sys.argv[1:]: print(fingerprint(resolve(name, cache=Path('none'))))\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    names = [str(tmp_path), "random:tiny-llama"]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, *names],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = [fingerprint(folder), fingerprint(resolve(names[1], cache=tmp_path))]
    assert outputs == {f"{here[0]}\n{here[1]}\n[]\n"}


def test_volatile_keys_and_key_order_do_not_change_the_fingerprint(tmp_path):
    folder = make_folder(tmp_path)
    before = fingerprint(folder)
    config = dict(reversed(folder.config().items()))
    config |= {"transformers_version": "9", "torch_dtype": "float16", "_name_or_path": "elsewhere"}
    (tmp_path / "config.json").write_text(json.dumps(config, indent=7))
    assert fingerprint(folder) == before


@pytest.mark.parametrize("change", ["config", "tokenizer"])
def test_another_architecture_or_tokenizer_is_another_fingerprint(tmp_path, change):
    folder = make_folder(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other = ModelFolder(name="b", path=tmp_path / "b")
    assert fingerprint(folder) == fingerprint(other)
    file = tmp_path / "b" / ("config.json" if change == "config" else "tokenizer.json")
    value = json.loads(file.read_text())
    value["rms_norm_eps" if change == "config" else "version"] = 1
    file.write_text(json.dumps(value))
    assert fingerprint(folder) != fingerprint(other)


def test_every_shape_has_a_fingerprint_of_its_own(tmp_path):
    prints = {fingerprint(resolve(f"random:{name}", cache=tmp_path)) for name in SHAPES}
    assert len(prints) == len(SHAPES)
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in prints)


def test_kv_sizes_fall_back_as_the_model_classes_do():
    base = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    plain = kv_geometry(base)
    assert (plain.kv_heads, plain.head_dim) == (4, 16)
    assert kv_geometry({**base, "model_type": "qwen3"}).head_dim == 128
    assert kv_geometry({**base, "head_dim": 32, "num_key_value_heads": 1}).block_bytes(16, 2) == (
        2 * 2 * 16 * 1 * 32 * 2
    )
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        kv_geometry({"num_attention_heads": 4})
