"""A causal decoder, computed in float64 position by position, head by head and expert by expert.

What Qwen2-MoE, Qwen3-MoE and OLMoE have in common, and Mixtral and Llama before them:

    x <- x + attention(rms(x)),  x <- x + feed_forward(rms(x)),  logits = head(rms(x))

- rms(x) = x / sqrt(mean(x^2) + rms_norm_eps) * weight (Zhang and Sennrich, 2019): no mean is taken away, no bias.
- Rotary positions (Su et al., 2021) in the form of two halves: element i of a head turns with element i + head_dim / 2
  by position * rope_theta^(-2 i / head_dim); positions count from 0; queries and keys turn, values do not.
- Query head h attends to the key and value head h // (heads / key-value heads) (Ainslie et al., 2023); the scores are
  divided by sqrt(head_dim); a position sees itself and what lies before it.
- A gated feed-forward (Shazeer, 2020): down(silu(gate(x)) * up(x)).
- A router is a linear map without bias, then softmax over all experts, then the likeliest num_experts_per_tok. Their
  probabilities are the gates, divided by their sum only where norm_topk_prob is true.
- Where tie_word_embeddings is true the head is the embedding and the file has no lm_head.weight.

Where the families differ is in the file of each.
"""

import numpy as np

import kit


class Decoder:
    """One sequence. A family says what attention projects to, which layers are sparse, and what experts there are."""

    def __init__(self, config, weights):
        self.config = config
        self.w = weights
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim", config["hidden_size"] // self.heads)
        layers = config["num_hidden_layers"]
        self.keys = [[] for _ in range(layers)]
        self.values = [[] for _ in range(layers)]
        self.router_gap = np.inf
        self.routes = {layer: [] for layer in range(layers) if self.is_sparse(layer)}
        self.hidden = []  # For each position [layers + 1, hidden]: what enters each layer, and what leaves the last.

    def rms(self, x, weight):
        return x / np.sqrt((x * x).mean() + self.config.get("rms_norm_eps", self.default_eps)) * weight

    def turn(self, head, position):
        half = self.head_dim // 2
        turned = np.empty(self.head_dim)
        for i in range(half):
            angle = position * self.config["rope_theta"] ** (-2.0 * i / self.head_dim)
            c, s = np.cos(angle), np.sin(angle)
            turned[i] = head[i] * c - head[i + half] * s
            turned[i + half] = head[i + half] * c + head[i] * s
        return turned

    def attention(self, layer, x):
        at = f"model.layers.{layer}.self_attn."
        position = len(self.keys[layer])
        queries, keys, values = self.project(at, x)
        self.keys[layer].append([self.turn(key, position) for key in keys])
        self.values[layer].append(values)
        outputs = []
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            query = self.turn(queries[head], position)
            scores = np.array([query @ key[shared] for key in self.keys[layer]]) / np.sqrt(self.head_dim)
            weights = kit.softmax(scores)
            outputs.append(sum(p * value[shared] for p, value in zip(weights, self.values[layer])))
        return self.w[at + "o_proj.weight"] @ np.concatenate(outputs)

    def gated(self, at, x):
        gate = self.w[at + "gate_proj.weight"] @ x
        return self.w[at + "down_proj.weight"] @ (gate * kit.sigmoid(gate) * (self.w[at + "up_proj.weight"] @ x))

    def experts(self, layer, x):
        at = f"model.layers.{layer}.mlp."
        probabilities = kit.softmax(self.w[at + "gate.weight"] @ x)
        chosen, gap = kit.top(probabilities, self.config["num_experts_per_tok"])
        self.router_gap = min(self.router_gap, gap)
        gates = probabilities[chosen]
        if self.config["norm_topk_prob"]:
            gates = gates / gates.sum()
        self.routes[layer].append((chosen, gates))
        return sum(gate * self.gated(f"{at}experts.{expert}.", x) for expert, gate in zip(chosen, gates))

    def step(self, token):
        """Takes one more token; returns the logits [vocab_size] for the one after it."""
        x = self.w["model.embed_tokens.weight"][token]
        seen = [x]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            x = x + self.attention(layer, self.rms(x, self.w[at + "input_layernorm.weight"]))
            x = x + self.feed_forward(layer, self.rms(x, self.w[at + "post_attention_layernorm.weight"]))
            seen.append(x)
        self.hidden.append(np.array(seen))
        head = "model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"
        return self.w[head] @ self.rms(x, self.w["model.norm.weight"])

    # What a family says.

    default_eps = None  # rms_norm_eps where the configuration has none.

    def is_sparse(self, layer):
        raise NotImplementedError

    def project(self, at, x):
        """Queries [heads, head_dim], keys and values [kv_heads, head_dim] of one position, before they turn."""
        raise NotImplementedError

    def feed_forward(self, layer, x):
        raise NotImplementedError


def matrix(rows, columns, scale=1.3):
    return (rows, columns), 0.0, scale / np.sqrt(columns)


def vector(size, mean=1.0, spread=0.2):
    return (size,), mean, spread


def gated_shapes(at, inner, hidden):
    return {
        at + "gate_proj.weight": matrix(inner, hidden),
        at + "up_proj.weight": matrix(inner, hidden),
        at + "down_proj.weight": matrix(hidden, inner, 2.0),
    }


def outer_shapes(config, embedding_spread):
    hidden = config["hidden_size"]
    shapes = {
        "model.embed_tokens.weight": ((config["vocab_size"], hidden), 0.0, embedding_spread),
        "model.norm.weight": vector(hidden),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = matrix(config["vocab_size"], hidden, 2.0)
    return shapes


def attention_shapes(config, layer):
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    at = f"model.layers.{layer}."
    return {
        at + "input_layernorm.weight": vector(hidden),
        at + "self_attn.q_proj.weight": matrix(heads * head_dim, hidden, 1.5),
        at + "self_attn.k_proj.weight": matrix(kv_heads * head_dim, hidden, 1.5),
        at + "self_attn.v_proj.weight": matrix(kv_heads * head_dim, hidden),
        at + "self_attn.o_proj.weight": matrix(hidden, heads * head_dim),
        at + "post_attention_layernorm.weight": vector(hidden),
    }


def expert_shapes(config, layer, inner):
    hidden = config["hidden_size"]
    at = f"model.layers.{layer}.mlp."
    shapes = {at + "gate.weight": matrix(config["num_experts"], hidden, 1.0)}
    for expert in range(config["num_experts"]):
        shapes |= gated_shapes(f"{at}experts.{expert}.", inner, hidden)
    return shapes


def compute(family, config, weights, seed):
    """Everything that a fixture keeps, in float64, and the margins."""
    low, high = 3, config["vocab_size"] - 8
    ids = kit.draw_ids(seed, "ids", kit.TOKENS, low, high)
    decoder = family(config, weights)
    logits = np.array([decoder.step(token) for token in ids])
    routes = {
        str(layer): {"experts": [chosen for chosen, _ in made],
                     "gates": [[round(float(g), 6) for g in gates] for _, gates in made]}
        for layer, made in decoder.routes.items()
    }
    hidden = np.array(decoder.hidden).transpose(1, 0, 2)

    prompt = kit.draw_ids(seed, "prompt", kit.PROMPT, low, high)
    writer = family(config, weights)
    for token in prompt:
        scores = writer.step(token)
    greedy, logit_gap = [], np.inf
    while True:
        following, gap = kit.best_and_gap(scores)
        logit_gap = min(logit_gap, gap)
        greedy.append(following)
        if len(greedy) == kit.CONTINUATION:
            break
        scores = writer.step(following)
    margins = {
        "router": min(decoder.router_gap, writer.router_gap),
        "logit": logit_gap,
        "rounding": min(kit.rounding_gap(logits), kit.rounding_gap(hidden)),
    }
    return {"ids": ids, "logits": logits, "routes": routes, "hidden": hidden, "prompt": prompt, "greedy": greedy,
            "margins": margins}


def make(name, family, config, shapes, seed, folder):
    stored, weights = kit.make_weights(seed, shapes)
    found = compute(family, config, weights, seed)
    kit.require_margins(name, found["margins"])
    stop = config["eos_token_id"]
    if stop in found["greedy"]:
        raise SystemExit(f"{name}: the continuation holds eos_token_id {stop}; choose another seed")
    kit.write_json(folder / "config.json", config)
    kit.write_safetensors(folder / "model.safetensors", stored)
    kit.write_npy(folder / "logits.npy", found["logits"])
    kit.write_npy(folder / "hidden.npy", found["hidden"])
    (folder / "golden.json").write_text(kit.compact({
        "seed": seed,
        "ids": found["ids"],
        "prompt": found["prompt"],
        "greedy": found["greedy"],
        "margins": {key: float(f"{found['margins'][key]:.2e}") for key in ("router", "logit")},
        "routes": found["routes"],
    }))
