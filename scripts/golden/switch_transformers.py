#!/usr/bin/env python3
"""Makes or checks the golden fixtures of SwitchTransformersForConditionalGeneration.

Usage: switch_transformers.py FOLDER [--check]

Sources: "Switch Transformers" (Fedus, Zoph and Shazeer, 2021) for the experts, "Exploring the Limits of Transfer
Learning with a Unified Text-to-Text Transformer" (Raffel et al., 2019) for T5; the cards and configurations of
google/switch-base-8 to -256 for names, fields and values; issue 37017 and pull requests 37123 and 48421 of
huggingface/transformers for what becomes of a token that finds its expert full. In this family:

- an encoder and a decoder, x <- x + part(rms(x)) for each part of a block: self-attention, in the decoder attention to
  the encoder's output, feed-forward; then rms once more at the end of each stack. rms takes no mean away and has no
  bias; its epsilon is layer_norm_epsilon;
- attention has num_heads heads of d_kv elements, num_heads * d_kv need not be d_model; no projection has a bias, and
  the scores are not divided by sqrt(d_kv);
- there are no position embeddings. To the score of query position q and key position k of self-attention a number is
  added that depends on the head and on the bucket of k - q. One table a stack, kept with its first block, serves all
  of its blocks. Attention to the encoder's output has none and sees all positions; the encoder's sees all, too;
- buckets of the decoder: distances d = q - k below half of the buckets have one each; the others share the second half
  by half + floor(log(d / half) / log(relative_attention_max_distance / half) * half), at most the last. The encoder
  does so with half of the buckets for k <= q, and with the other half, and d = k - q, for k > q;
- feed-forward wo(relu(wi(x))), without gate and bias (dense_act_fn relu, is_gated_act false);
- every n-th block of a stack is sparse, n = blocks / sparse blocks: those with i mod n = 1, all for n = 1, none where
  no block is sparse;
- the router is linear without bias, then softmax; the likeliest expert runs, its output is multiplied by its
  probability (the paper's equation 2). Jitter is for training only;
- each expert takes the first expert_capacity tokens of a sequence that choose it, by position. For the others the
  layer adds nothing: x goes on unchanged over the residual connection. (Versions of transformers before mid-2025 added
  the probability times the normalised input for them, and some from 5.0 on dropped none; the paper does neither.)
- the embedding serves encoder, decoder and, where tie_word_embeddings is true (which it is where the field is
  missing, as in the published files), the head; then what leaves the decoder is multiplied by d_model^-0.5 first.

switch is like the published files; no expert can overflow there. switch-capacity has few places, few buckets, stacks
of different depth and sparseness, and a head of its own. It has no continuation, since which tokens overflow in one
depends on whether positions computed earlier are counted.
"""

import math
import sys

sys.dont_write_bytecode = True

import numpy as np

import kit
import second_switch
from causal import matrix, vector

COMMON = {
    "add_router_probs": False,
    "architectures": ["SwitchTransformersForConditionalGeneration"],
    "d_ff": 36,
    "d_kv": 10,
    "d_model": 24,
    "decoder_sparse_step": 2,
    "decoder_start_token_id": 0,
    "dense_act_fn": "relu",
    "dropout_rate": 0.1,
    "encoder_sparse_step": 2,
    "eos_token_id": 1,
    "expert_capacity": 64,
    "feed_forward_proj": "relu",
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "is_gated_act": False,
    "layer_norm_epsilon": 1e-06,
    "model_type": "switch_transformers",
    "num_decoder_layers": 4,
    "num_experts": 5,
    "num_heads": 3,
    "num_layers": 4,
    "num_selected_experts": 1,
    "num_sparse_decoder_layers": 2,
    "num_sparse_encoder_layers": 2,
    "pad_token_id": 0,
    "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32,
    "router_aux_loss_coef": 0.001,
    "router_bias": False,
    "router_dtype": "float32",
    "router_ignore_padding_tokens": False,
    "router_jitter_noise": 0.01,
    "router_type": "tokens_masked",
    "router_z_loss_coef": 0.001,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 131,
}
CONFIGS = {
    "switch": COMMON,
    "switch-capacity": COMMON | {
        "decoder_sparse_step": 1,
        "encoder_sparse_step": 3,
        "expert_capacity": 8,
        "num_decoder_layers": 2,
        "num_experts": 4,
        "num_layers": 3,
        "num_sparse_decoder_layers": 2,
        "num_sparse_encoder_layers": 1,
        "relative_attention_max_distance": 20,
        "relative_attention_num_buckets": 8,
        "tie_word_embeddings": False,
    },
}
SEEDS = {"switch": 150, "switch-capacity": 1}


def is_sparse(config, stack, block):
    blocks, sparse = (
        (config["num_layers"], config["num_sparse_encoder_layers"])
        if stack == "encoder"
        else (config["num_decoder_layers"], config["num_sparse_decoder_layers"])
    )
    step = blocks // sparse if sparse else 0
    return step == 1 or (step > 1 and block % step == 1)


def bucket(config, stack, query, key):
    count = config["relative_attention_num_buckets"]
    first = 0
    if stack == "encoder":
        count //= 2
        first = count if key > query else 0
    distance = abs(key - query)
    half = count // 2
    if distance < half:
        return first + distance
    share = math.log(distance / half) / math.log(config["relative_attention_max_distance"] / half)
    return first + min(half + int(share * (count - half)), count - 1)


class Model:
    """One input and one output sequence. The encoder takes its input at once, the decoder one token after another."""

    def __init__(self, config, weights, ids):
        self.config = config
        self.w = weights
        self.router_gap = np.inf
        self.routes = {"encoder": {}, "decoder": {}}
        self.hidden = {"encoder": [], "decoder": []}
        blocks = config["num_decoder_layers"]
        self.keys = [[] for _ in range(blocks)]
        self.values = [[] for _ in range(blocks)]
        self.encode(ids)

    def rms(self, x, weight):
        return x / np.sqrt((x * x).mean() + self.config["layer_norm_epsilon"]) * self.w[weight]

    def split(self, at, n, x):
        return (self.w[f"{at}{n}.weight"] @ x).reshape(self.config["num_heads"], self.config["d_kv"])

    def attend(self, at, queries, keys, values, bias):
        """queries [heads, d_kv]; keys, values: one of that shape for each position; bias(head, position)."""
        mixed = []
        for head, query in enumerate(queries):
            scores = np.array([query @ key[head] + bias(head, position) for position, key in enumerate(keys)])
            mixed.append(sum(p * value[head] for p, value in zip(kit.softmax(scores), values)))
        return self.w[at + "o.weight"] @ np.concatenate(mixed)

    def bias(self, stack, query):
        table = self.w[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        return lambda head, key: table[bucket(self.config, stack, query, key), head]

    def dense(self, at, x):
        return self.w[at + "wo.weight"] @ np.maximum(self.w[at + "wi.weight"] @ x, 0.0)

    def feed_forward(self, stack, block, at, x):
        if not is_sparse(self.config, stack, block):
            return self.dense(at, x)
        probabilities = kit.softmax(self.w[at + "router.classifier.weight"] @ x)
        (expert,), gap = kit.top(probabilities, 1)
        self.router_gap = min(self.router_gap, gap)
        made = self.routes[stack].setdefault(str(block), {"experts": [], "gates": [], "dropped": []})
        dropped = made["experts"].count(expert) >= self.config["expert_capacity"]
        made["experts"].append(expert)
        made["gates"].append(round(float(probabilities[expert]), 6))
        made["dropped"].append(dropped)
        if dropped:
            return np.zeros_like(x)
        return probabilities[expert] * self.dense(f"{at}experts.expert_{expert}.", x)

    def encode(self, ids):
        stream = [self.w["shared.weight"][token] for token in ids]
        seen = [np.array(stream)]
        for block in range(self.config["num_layers"]):
            at = f"encoder.block.{block}.layer."
            attention = at + "0.SelfAttention."
            normal = [self.rms(x, at + "0.layer_norm.weight") for x in stream]
            keys = [self.split(attention, "k", x) for x in normal]
            values = [self.split(attention, "v", x) for x in normal]
            for position, x in enumerate(normal):
                queries = self.split(attention, "q", x)
                bias = self.bias("encoder", position)
                stream[position] = stream[position] + self.attend(attention, queries, keys, values, bias)
            for position, x in enumerate(stream):
                normal = self.rms(x, at + "1.layer_norm.weight")
                stream[position] = x + self.feed_forward("encoder", block, at + "1.mlp.", normal)
            seen.append(np.array(stream))
        self.hidden["encoder"] = np.array(seen)
        self.read = []  # Keys and values of the encoder's output for each block of the decoder.
        output = [self.rms(x, "encoder.final_layer_norm.weight") for x in stream]
        for block in range(self.config["num_decoder_layers"]):
            attention = f"decoder.block.{block}.layer.1.EncDecAttention."
            self.read.append([[self.split(attention, n, x) for x in output] for n in "kv"])

    def step(self, token):
        """Takes one more token of the output; returns the logits [vocab_size] for the one after it."""
        x = self.w["shared.weight"][token]
        position = len(self.keys[0])
        seen = [x]
        for block in range(self.config["num_decoder_layers"]):
            at = f"decoder.block.{block}.layer."
            attention = at + "0.SelfAttention."
            normal = self.rms(x, at + "0.layer_norm.weight")
            self.keys[block].append(self.split(attention, "k", normal))
            self.values[block].append(self.split(attention, "v", normal))
            queries = self.split(attention, "q", normal)
            bias = self.bias("decoder", position)
            x = x + self.attend(attention, queries, self.keys[block], self.values[block], bias)
            attention = at + "1.EncDecAttention."
            queries = self.split(attention, "q", self.rms(x, at + "1.layer_norm.weight"))
            x = x + self.attend(attention, queries, *self.read[block], lambda head, key: 0.0)
            x = x + self.feed_forward("decoder", block, at + "2.mlp.", self.rms(x, at + "2.layer_norm.weight"))
            seen.append(x)
        self.hidden["decoder"].append(np.array(seen))
        x = self.rms(x, "decoder.final_layer_norm.weight")
        if self.config.get("tie_word_embeddings", True):
            return self.w["shared.weight"] @ (x * self.config["d_model"] ** -0.5)
        return self.w["lm_head.weight"] @ x


def shapes(config):
    width, inner = config["d_model"], config["num_heads"] * config["d_kv"]
    made = {"shared.weight": ((config["vocab_size"], width), 0.0, 1.0)}
    if not config.get("tie_word_embeddings", True):
        made["lm_head.weight"] = matrix(config["vocab_size"], width, 1.5)

    def attention(at):
        # Scores are not divided by sqrt(d_kv); the queries are drawn so much smaller.
        made[at + "q.weight"] = matrix(inner, width, 2.0 / math.sqrt(config["d_kv"]))
        made[at + "k.weight"] = matrix(inner, width, 2.0)
        made[at + "v.weight"] = matrix(inner, width)
        # What is read from the encoder is much the same at each step; a large share of it would make the continuation
        # one token again and again.
        made[at + "o.weight"] = matrix(width, inner, 1.3 if "SelfAttention" in at else 0.4)

    def dense(at):
        made[at + "wi.weight"] = matrix(config["d_ff"], width)
        made[at + "wo.weight"] = matrix(width, config["d_ff"], 3.0)

    for stack, blocks in (("encoder", config["num_layers"]), ("decoder", config["num_decoder_layers"])):
        for block in range(blocks):
            at = f"{stack}.block.{block}.layer."
            parts = ["SelfAttention"] + (["EncDecAttention"] if stack == "decoder" else [])
            for number, part in enumerate(parts):
                attention(f"{at}{number}.{part}.")
                made[f"{at}{number}.layer_norm.weight"] = vector(width)
            last = len(parts)
            made[f"{at}{last}.layer_norm.weight"] = vector(width)
            if is_sparse(config, stack, block):
                made[f"{at}{last}.mlp.router.classifier.weight"] = matrix(config["num_experts"], width, 1.5)
                for expert in range(config["num_experts"]):
                    dense(f"{at}{last}.mlp.experts.expert_{expert}.")
            else:
                dense(f"{at}{last}.mlp.")
        table = (config["relative_attention_num_buckets"], config["num_heads"])
        made[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (table, 0.0, 1.0)
        made[f"{stack}.final_layer_norm.weight"] = vector(width)
    return made


def compute(config, weights, seed):
    """Everything that a fixture keeps, in float64, and the margins."""
    low, high = 3, config["vocab_size"]
    start = config["decoder_start_token_id"]
    ids = kit.draw_ids(seed, "ids", kit.TOKENS, low, high)
    decoder_ids = [start] + kit.draw_ids(seed, "decoder ids", kit.TOKENS - 1, low, high)
    model = Model(config, weights, ids)
    logits = np.array([model.step(token) for token in decoder_ids])
    hidden = {"encoder": model.hidden["encoder"], "decoder": np.array(model.hidden["decoder"]).transpose(1, 0, 2)}
    router_gap, logit_gap = model.router_gap, np.inf
    prompt, greedy = [], []
    if config["expert_capacity"] >= kit.CONTINUATION:
        prompt = kit.draw_ids(seed, "prompt", kit.PROMPT, low, high)
        writer = Model(config, weights, prompt)
        following = start
        while len(greedy) < kit.CONTINUATION:
            following, gap = kit.best_and_gap(writer.step(following))
            logit_gap = min(logit_gap, gap)
            greedy.append(following)
        router_gap = min(router_gap, writer.router_gap)
    else:
        logit_gap = min(kit.best_and_gap(row)[1] for row in logits)
    margins = {
        "router": router_gap,
        "logit": logit_gap,
        "rounding": min(kit.rounding_gap(values) for values in (logits, hidden["encoder"], hidden["decoder"])),
    }
    return {"ids": ids, "decoder_ids": decoder_ids, "logits": logits, "routes": model.routes, "hidden": hidden,
            "prompt": prompt, "greedy": greedy, "margins": margins}


def make(name, folder):
    config, seed = CONFIGS[name], SEEDS[name]
    stored, weights = kit.make_weights(seed, shapes(config))
    found = compute(config, weights, seed)
    kit.require_margins(name, found["margins"])
    if config["eos_token_id"] in found["greedy"]:
        raise SystemExit(f"{name}: the continuation holds eos_token_id; choose another seed")
    kit.write_json(folder / "config.json", config)
    kit.write_safetensors(folder / "model.safetensors", stored)
    kit.write_npy(folder / "logits.npy", found["logits"])
    kit.write_npy(folder / "encoder_hidden.npy", found["hidden"]["encoder"])
    kit.write_npy(folder / "decoder_hidden.npy", found["hidden"]["decoder"])
    kept = {"seed": seed, "ids": found["ids"], "decoder_ids": found["decoder_ids"]}
    if found["greedy"]:
        kept |= {"prompt": found["prompt"], "greedy": found["greedy"]}
    kept |= {
        "margins": {key: float(f"{found['margins'][key]:.2e}") for key in ("router", "logit")},
        "encoder_routes": found["routes"]["encoder"],
        "decoder_routes": found["routes"]["decoder"],
    }
    (folder / "golden.json").write_text(kit.compact(kept))


def check(name, folder):
    common = [
        second_switch.SCALED_SCORES,
        second_switch.BIAS_IN_FIRST_BLOCK_ONLY,
        second_switch.NO_BIAS,
        second_switch.BIAS_ON_ENCODER_OUTPUT,
        second_switch.ONE_SIDED_ENCODER,
        second_switch.CAUSAL_ENCODER,
        second_switch.NO_GATE,
        second_switch.MEAN_REMOVED,
        second_switch.NO_FINAL_NORM_OF_ENCODER,
    ]
    own = {
        "switch": [second_switch.HEAD_NOT_SCALED],
        "switch-capacity": [second_switch.HEAD_SCALED, second_switch.NO_CAPACITY, second_switch.DROPPED_PASS_THROUGH],
    }
    second_switch.check(folder, common + own[name])


if __name__ == "__main__":
    kit.command_line(__doc__, CONFIGS, make, check)
