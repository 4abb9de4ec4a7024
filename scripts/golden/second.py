"""The causal decoders a second time, written another way, and with mistakes on demand.

Where causal.py goes position by position and runs the chosen experts, this computes whole sequences as matrices: one
mask for all positions, rotation as a product of complex numbers, every expert on every token and a matrix of gates
with zeros. It reads weights and configuration from the fixture's own files. Each mistake below is one that an
implementation could make; the check demands that the kept logits show it.

Usage: second.py FOLDER compares this computation with the Mixtral fixture in the folder, whose logits are another
script's: so the two scripts agree on what the families have in common.
"""

import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import numpy as np

import kit

RENORMALISED = "gates divided by their sum"
NOT_RENORMALISED = "gates not divided by their sum"
NO_BIAS = "biases left out"
OPEN_SHARED_EXPERT = "the shared expert not gated"
WINDOW = "the window used although use_sliding_window is false"
INTERLEAVED = "rotation of neighbouring elements"
SMALLER_THETA = "rope_theta 10000"
LARGER_THETA = "rope_theta 1000000"
NO_HEAD_NORM = "q_norm and k_norm left out"
NORM_AFTER_TURNING = "q_norm and k_norm after the rotation"
NORM_BY_HEAD = "q_norm and k_norm head by head"
SMALLER_EPS = "epsilon 1e-6 instead of 1e-5"
LARGER_EPS = "epsilon 1e-5 instead of 1e-6"

SEEN = 1e-2  # By how much a mistake must change some logit; the logits are of the order of one.


def rms(x, weight, eps):
    """Over the last axis."""
    return x * weight / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)


def silu(x):
    return x / (np.exp(-x) + 1.0)


def rotate(x, theta, mistake):
    """x [tokens, heads, head_dim] as complex numbers, times e^(i * position * frequency)."""
    tokens, _, head_dim = x.shape
    half = head_dim // 2
    frequencies = np.exp(-np.log(theta) * np.arange(half) / half)
    factors = np.exp(1j * np.outer(np.arange(tokens), frequencies))[:, None, :]
    if mistake == INTERLEAVED:
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * factors
        return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)
    z = (x[..., :half] + 1j * x[..., half:]) * factors
    return np.concatenate([z.real, z.imag], axis=-1)


def attention(config, w, at, x, eps, mistake):
    tokens = len(x)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    theta = {SMALLER_THETA: 1e4, LARGER_THETA: 1e6}.get(mistake, config["rope_theta"])
    parts = {}
    for n, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        y = np.einsum("th,oh->to", x, w[f"{at}{n}_proj.weight"])
        if config["model_type"] == "qwen2_moe" and mistake != NO_BIAS:
            y = y + w[f"{at}{n}_proj.bias"][None, :]
        norm = w[f"{at}{n}_norm.weight"] if n != "v" and config["model_type"] in ("qwen3_moe", "olmoe") else None
        if mistake == NO_HEAD_NORM:
            norm = None
        y_heads = y.reshape(tokens, count, -1)
        if norm is not None and config["model_type"] == "olmoe":
            if mistake == NORM_BY_HEAD:
                y_heads = rms(y_heads, norm.reshape(count, -1), eps)
            else:
                y_heads = rms(y, norm, eps).reshape(y_heads.shape)
        elif norm is not None and mistake != NORM_AFTER_TURNING:
            y_heads = rms(y_heads, norm, eps)
        if n != "v":
            y_heads = rotate(y_heads, theta, mistake)
        if norm is not None and mistake == NORM_AFTER_TURNING:
            y_heads = rms(y_heads, norm, eps)
        parts[n] = y_heads
    keys, values = (np.repeat(parts[n], heads // kv_heads, axis=1) for n in "kv")
    scores = np.einsum("qhd,khd->hqk", parts["q"], keys) * parts["q"].shape[-1] ** -0.5
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    hidden = distance < 0
    if mistake == WINDOW:
        hidden |= distance >= config["sliding_window"]
    scores = np.where(hidden[None], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", weights, values).reshape(tokens, -1)
    return np.einsum("tc,oc->to", mixed, w[at + "o_proj.weight"])


def gated(w, at, x):
    inner = silu(x @ w[at + "gate_proj.weight"].T) * (x @ w[at + "up_proj.weight"].T)
    return inner @ w[at + "down_proj.weight"].T


def feed_forward(config, w, at, x, mistake):
    if at + "gate.weight" not in w:
        return gated(w, at, x)
    scores = x @ w[at + "gate.weight"].T
    likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    least = np.sort(likely, axis=1)[:, -config["num_experts_per_tok"]]
    gates = np.where(likely >= least[:, None], likely, 0.0)
    renormalise = {RENORMALISED: True, NOT_RENORMALISED: False}.get(mistake, config["norm_topk_prob"])
    if renormalise:
        gates /= gates.sum(axis=1, keepdims=True)
    y = sum(gates[:, e : e + 1] * gated(w, f"{at}experts.{e}.", x) for e in range(gates.shape[1]))
    if at + "shared_expert_gate.weight" in w:
        openness = 0.5 * (1.0 + np.tanh(0.5 * (x @ w[at + "shared_expert_gate.weight"].T)))
        y = y + gated(w, at + "shared_expert.", x) * (1.0 if mistake == OPEN_SHARED_EXPERT else openness)
    return y


def compute(config, w, ids, mistake=None):
    """Logits [tokens, vocab_size] and what enters each layer and leaves the last [layers + 1, tokens, hidden]."""
    eps = config.get("rms_norm_eps", 1e-5 if config["model_type"] == "olmoe" else 1e-6)
    eps = {SMALLER_EPS: 1e-6, LARGER_EPS: 1e-5}.get(mistake, eps)
    x = w["model.embed_tokens.weight"][ids]
    seen = [x]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        x = x + attention(config, w, at + "self_attn.", rms(x, w[at + "input_layernorm.weight"], eps), eps, mistake)
        x = x + feed_forward(config, w, at + "mlp.", rms(x, w[at + "post_attention_layernorm.weight"], eps), mistake)
        seen.append(x)
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return rms(x, w["model.norm.weight"], eps) @ head.T, np.array(seen)


def read_fixture(folder):
    config = json.loads((folder / "config.json").read_text())
    golden = json.loads((folder / "golden.json").read_text())
    return config, kit.read_safetensors(folder / "model.safetensors"), golden


def check(folder, mistakes):
    config, w, golden = read_fixture(folder)
    logits, seen = compute(config, w, golden["ids"])
    kept = np.load(folder / "logits.npy")
    kit.require_same("logits of the second computation", logits, kept)
    kit.require_same("hidden states of the second computation", seen, np.load(folder / "hidden.npy"))
    text = golden["prompt"] + golden["greedy"]
    scores, _ = compute(config, w, text[:-1])
    again = [int(token) for token in scores[len(golden["prompt"]) - 1 :].argmax(axis=1)]
    if again != golden["greedy"]:
        raise SystemExit("the continuation of the second computation differs")
    print(f"  continuation of the second computation: the same {len(again)} tokens, {len(set(again))} different ones")
    for mistake in mistakes:
        wrong, _ = compute(config, w, golden["ids"], mistake)
        kit.require_apart(mistake, wrong, kept, SEEN)


def check_mixtral(folder):
    """The same computation on the Mixtral fixture, which another script made: a third opinion on what is common."""
    config, w, golden = read_fixture(folder)
    w = {name.replace("block_sparse_moe", "mlp").replace("w1.", "gate_proj.").replace("w2.", "down_proj.")
         .replace("w3.", "up_proj."): value for name, value in w.items()}
    config["norm_topk_prob"] = True
    for sequence in golden["sequences"]:
        logits, _ = compute(config, w, sequence["ids"])
        apart = np.abs(logits[sequence["rows"]] - np.array(sequence["logits"])).max()
        if not apart <= 5.1e-7:  # They are kept with six decimals.
            raise SystemExit(f"{folder}: the logits of {len(sequence['ids'])} tokens are {apart:.3g} apart")
        print(f"Mixtral, {len(sequence['ids'])} tokens: logits at most {apart:.1e} apart")


if __name__ == "__main__":
    check_mixtral(Path(sys.argv[1]))
