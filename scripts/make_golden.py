#!/usr/bin/env python3
"""Makes the golden fixture: a small random Mixtral checkpoint and the logits that it must give.

The decoder below is written from the published description of the architecture, in float64, position by position
and expert by expert, and shares no code with the C++ one. The tokenizers, the second one in FOLDER/../tokenizer-other,
are trained by spm_train (Debian package sentencepiece) on the few sentences below; spm_encode and spm_decode say what
they make of the samples. Usage: make_golden.py FOLDER
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SHAPE = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_act": "silu",
    "hidden_size": 40,
    "intermediate_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "vocab_size": 320,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


TEXT = """\
The quick brown fox jumps over the lazy dog while the small cat sleeps under the table.
A server holds experts, and a token moves to the server that holds the expert it wants.
Twelve plus seven is nineteen, and nineteen minus four is fifteen.
There is nothing new under the sun; the wind goes toward the south and turns to the north.
What has been is what will be, and what has been done is what will be done.
All streams run to the sea, but the sea is not full.
"""


def to_bf16(values):
    """Rounds float32 to the nearest bf16, ties to even; returns (uint16, the same values in float64)."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    back = (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return halves, back


def make_weights():
    random = np.random.Generator(np.random.PCG64(20240229))
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    heads, kv_heads, head_dim = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"], SHAPE["head_dim"]
    shapes = {"model.embed_tokens.weight": (SHAPE["vocab_size"], hidden)}
    for layer in range(SHAPE["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = (hidden,)
        shapes[at + "self_attn.q_proj.weight"] = (heads * head_dim, hidden)
        shapes[at + "self_attn.k_proj.weight"] = (kv_heads * head_dim, hidden)
        shapes[at + "self_attn.v_proj.weight"] = (kv_heads * head_dim, hidden)
        shapes[at + "self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        shapes[at + "post_attention_layernorm.weight"] = (hidden,)
        shapes[at + "block_sparse_moe.gate.weight"] = (SHAPE["num_local_experts"], hidden)
        for expert in range(SHAPE["num_local_experts"]):
            name = f"{at}block_sparse_moe.experts.{expert}."
            shapes[name + "w1.weight"] = (inner, hidden)
            shapes[name + "w2.weight"] = (hidden, inner)
            shapes[name + "w3.weight"] = (inner, hidden)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (SHAPE["vocab_size"], hidden)
    stored, values = {}, {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            drawn = 1.0 + 0.2 * random.standard_normal(shape)
        elif name == "model.embed_tokens.weight":
            drawn = random.standard_normal(shape)
        else:
            drawn = 1.5 * random.standard_normal(shape) / np.sqrt(shape[1])
        stored[name], values[name] = to_bf16(drawn)
    return stored, values


def write_checkpoint(folder, stored):
    (folder / "config.json").write_text(json.dumps(SHAPE, indent=2) + "\n")
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(stored):
        raw = stored[name].astype("<u2").tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(stored[name].shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


# Texts whose ids and decoded form the SentencePiece programs print.
SAMPLES = [
    "The quick brown fox",
    "  leading and   many    spaces  ",
    "Twelve plus seven is nineteen: 12+7=19!",
    "na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \u6f22\u5b57 \U0001f642 ok",
    "tab\tinside",
    "a",
    "<s> is no control here </s> <0x41> <unk> [end] of",
    "\u2581 literal space symbol",
    "\ufb01ne \u2460\u2461 wine, ligature and circled digits",
    "All streams run to the sea, but the sea is not full. All streams run to the sea.",
]
# The second tokenizer's own normalisation: fi ligature to letters, circled digits to digits.
RULES = "FB01\t66 69\n2460\t31\n2461\t32\n2462\t33\n"


def run(arguments, work, text=None):
    return subprocess.run(arguments, check=True, cwd=work, input=text, capture_output=True).stdout.decode()


def train_tokenizer(path, options):
    # Relative names: the trainer records them, and the fixture shall not depend on where it was made.
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "text").write_text(TEXT)
        (Path(work) / "rules").write_text(RULES)
        run(["spm_train", "--input=text", "--model_prefix=tokenizer", "--model_type=bpe", "--character_coverage=1.0",
             "--num_threads=1", "--minloglevel=2", *options], work)
        path.write_bytes((Path(work) / "tokenizer.model").read_bytes())
        pieces = []
        for sample in SAMPLES:
            ids = run(["spm_encode", f"--model={path.resolve()}", "--output_format=id"], work, sample.encode() + b"\n")
            text = run(["spm_decode", f"--model={path.resolve()}", "--input_format=id"], work, ids.encode())
            pieces.append({"text": sample, "ids": [int(i) for i in ids.split()], "decoded": text.rstrip("\n")})
    return pieces


def write_tokenizers(folder):
    plain = train_tokenizer(folder / "tokenizer.model", [
        f"--vocab_size={SHAPE['vocab_size']}", "--byte_fallback=true", "--normalization_rule_name=identity"])
    other = folder.parent / "tokenizer-other"
    other.mkdir(exist_ok=True)
    ruled = train_tokenizer(other / "tokenizer.model", [
        "--vocab_size=90", "--byte_fallback=false", "--normalization_rule_tsv=rules",
        "--remove_extra_whitespaces=false", "--user_defined_symbols=[end],of"])
    for path, pieces in ((folder, plain), (other, ruled)):
        (path / "pieces.json").write_text(json.dumps(pieces, indent=1) + "\n")


def normalise(x, weight):
    return x / np.sqrt((x * x).mean() + SHAPE["rms_norm_eps"]) * weight


def turn(vector, position):
    """Rotary embedding of one head: element i is paired with element i + head_dim / 2."""
    half = SHAPE["head_dim"] // 2
    angles = position * SHAPE["rope_theta"] ** (-np.arange(half) / half)
    low, high = vector[:half], vector[half:]
    return np.concatenate([low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles)])


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def forward(w, ids):
    """Logits [len(ids), vocab_size] in float64."""
    heads, kv_heads, head_dim = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"], SHAPE["head_dim"]
    stream = [w["model.embed_tokens.weight"][i].copy() for i in ids]
    for layer in range(SHAPE["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        keys, values = [], []
        for position in range(len(ids)):
            x = normalise(stream[position], w[at + "input_layernorm.weight"])
            query = (w[at + "self_attn.q_proj.weight"] @ x).reshape(heads, head_dim)
            key = (w[at + "self_attn.k_proj.weight"] @ x).reshape(kv_heads, head_dim)
            keys.append([turn(k, position) for k in key])
            values.append((w[at + "self_attn.v_proj.weight"] @ x).reshape(kv_heads, head_dim))
            mixed = []
            for head in range(heads):
                shared = head // (heads // kv_heads)
                q = turn(query[head], position)
                weights = softmax(np.array([q @ k[shared] for k in keys]) / np.sqrt(head_dim))
                mixed.append(sum(p * v[shared] for p, v in zip(weights, values)))
            stream[position] = stream[position] + w[at + "self_attn.o_proj.weight"] @ np.concatenate(mixed)
        for position in range(len(ids)):
            x = normalise(stream[position], w[at + "post_attention_layernorm.weight"])
            scores = softmax(w[at + "block_sparse_moe.gate.weight"] @ x)
            chosen = np.argsort(-scores, kind="stable")[: SHAPE["num_experts_per_tok"]]
            total = scores[chosen].sum()
            for expert in chosen:
                name = f"{at}block_sparse_moe.experts.{expert}."
                a = w[name + "w1.weight"] @ x
                b = w[name + "w3.weight"] @ x
                out = w[name + "w2.weight"] @ (a / (1 + np.exp(-a)) * b)
                stream[position] = stream[position] + scores[expert] / total * out
    return np.array([w["lm_head.weight"] @ normalise(x, w["model.norm.weight"]) for x in stream])


def greedy(w, ids, count):
    ids = list(ids)
    made = []
    for _ in range(count):
        scores = forward(w, ids)[-1]
        following = int(np.argmax(scores))
        if following == SHAPE["eos_token_id"]:
            break
        made.append(following)
        ids.append(following)
    return made


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    stored, w = make_weights()
    write_checkpoint(folder, stored)
    write_tokenizers(folder)
    random = np.random.Generator(np.random.PCG64(7))
    sequences = []
    for length in (1, 5, 17, 40):
        ids = [1] + [int(i) for i in random.integers(3, SHAPE["vocab_size"], length - 1)]
        scores = forward(w, ids)
        # All rows of the short sequences, the last three of the long ones: the whole fixture stays small.
        kept = range(len(ids)) if len(ids) <= 5 else range(len(ids) - 3, len(ids))
        sequences.append({
            "ids": ids,
            "rows": list(kept),
            "logits": [[round(float(x), 6) for x in scores[r]] for r in kept],
            "greedy": greedy(w, ids, 12),
        })
    (folder / "golden.json").write_text(json.dumps({"sequences": sequences}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
