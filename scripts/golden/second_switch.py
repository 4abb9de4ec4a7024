"""Switch Transformers a second time, whole sequences as matrices, and with mistakes on demand; see second.py."""

import numpy as np

import kit
from second import SEEN, read_fixture, rms

SCALED_SCORES = "scores divided by sqrt(d_kv)"
NO_BIAS = "no relative position bias"
BIAS_IN_FIRST_BLOCK_ONLY = "the bias in the first block only"
BIAS_ON_ENCODER_OUTPUT = "the decoder's bias on attention to the encoder's output"
ONE_SIDED_ENCODER = "the encoder's buckets like the decoder's"
CAUSAL_ENCODER = "the encoder seeing only what lies before"
NO_GATE = "the expert's output not multiplied by its probability"
MEAN_REMOVED = "norms that take the mean away"
NO_FINAL_NORM_OF_ENCODER = "no norm at the end of the encoder"
HEAD_NOT_SCALED = "the tied head not scaled"
HEAD_SCALED = "the untied head scaled"
NO_CAPACITY = "no expert ever full"
DROPPED_PASS_THROUGH = "dropped tokens given probability times normalised input"


def norm(config, x, weight, mistake):
    if mistake == MEAN_REMOVED:
        x = x - x.mean(axis=-1, keepdims=True)
    return rms(x, weight, config["layer_norm_epsilon"])


def buckets(config, sided, queries, keys):
    """Bucket numbers [queries, keys] from comparisons of integers alone.

    A distance d >= half is in step m or a later one when log(d / half) / log(far / half) * half >= m, which is
    (d / half)^half >= (far / half)^m, which is d^half * half^m >= far^m * half^half.
    """
    count, far = config["relative_attention_num_buckets"], config["relative_attention_max_distance"]
    made = np.zeros((queries, keys), dtype=int)
    for q in range(queries):
        for k in range(keys):
            if sided == "two":
                size, first = count // 2, (count // 2 if k > q else 0)
                distance = abs(k - q)
            else:
                size, first = count, 0
                distance = max(q - k, 0)
            half = size // 2
            step = 0
            if distance >= half:
                while step < half - 1 and distance**half * half ** (step + 1) >= far ** (step + 1) * half**half:
                    step += 1
                distance = half + step
            made[q, k] = first + distance
    return made


def attention(config, w, at, x, read, bias, mask, mistake):
    def heads(y, n):
        return np.einsum("tc,oc->to", y, w[f"{at}{n}.weight"]).reshape(len(y), config["num_heads"], -1)

    scores = np.einsum("qhd,khd->hqk", heads(x, "q"), heads(read, "k"))
    if mistake == SCALED_SCORES:
        scores = scores / np.sqrt(config["d_kv"])
    scores = np.where(mask[None], scores + bias, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", weights, heads(read, "v")).reshape(len(x), -1)
    return mixed @ w[at + "o.weight"].T


def dense(w, at, x):
    inner = x @ w[at + "wi.weight"].T
    return (inner * (inner > 0)) @ w[at + "wo.weight"].T


def feed_forward(config, w, at, x, mistake):
    """Returns the output and, for a sparse block, which tokens found their expert full."""
    if at + "wi.weight" in w:
        return dense(w, at, x), None
    scores = x @ w[at + "router.classifier.weight"].T
    likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    chosen = (likely == likely.max(axis=1, keepdims=True)).astype(int)
    kept = chosen * (np.cumsum(chosen, axis=0) <= config["expert_capacity"])
    dropped = kept.sum(axis=1) == 0
    if mistake == NO_CAPACITY:
        kept = chosen
    gates = kept if mistake == NO_GATE else kept * likely
    y = sum(gates[:, [e]] * dense(w, f"{at}experts.expert_{e}.", x) for e in range(config["num_experts"]))
    if mistake == DROPPED_PASS_THROUGH:
        y = y + dropped[:, None] * likely.max(axis=1, keepdims=True) * x
    return y, dropped


def stack(config, w, name, blocks, ids, read, mistake):
    tokens = len(ids)
    decoder = name == "decoder"
    below = np.tri(tokens, dtype=bool)
    mask = below if decoder or mistake == CAUSAL_ENCODER else np.ones_like(below)
    sided = "one" if decoder or mistake == ONE_SIDED_ENCODER else "two"
    table = w[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = table[buckets(config, sided, tokens, tokens)].transpose(2, 0, 1)
    if mistake == NO_BIAS:
        bias = bias * 0.0
    x = w["shared.weight"][ids]
    seen, dropped = [x], {}
    for block in range(blocks):
        at = f"{name}.block.{block}.layer."
        y = norm(config, x, w[at + "0.layer_norm.weight"], mistake)
        added = bias * 0.0 if mistake == BIAS_IN_FIRST_BLOCK_ONLY and block > 0 else bias
        x = x + attention(config, w, at + "0.SelfAttention.", y, y, added, mask, mistake)
        last = 1
        if decoder:
            y = norm(config, x, w[at + "1.layer_norm.weight"], mistake)
            across = 0.0
            if mistake == BIAS_ON_ENCODER_OUTPUT:
                across = table[buckets(config, "one", tokens, len(read))].transpose(2, 0, 1)
            everything = np.ones((tokens, len(read)), dtype=bool)
            x = x + attention(config, w, at + "1.EncDecAttention.", y, read, across, everything, mistake)
            last = 2
        y = norm(config, x, w[f"{at}{last}.layer_norm.weight"], mistake)
        added, full = feed_forward(config, w, f"{at}{last}.mlp.", y, mistake)
        if full is not None:
            dropped[str(block)] = full
        x = x + added
        seen.append(x)
    if mistake == NO_FINAL_NORM_OF_ENCODER and not decoder:
        return x, np.array(seen), dropped
    return norm(config, x, w[f"{name}.final_layer_norm.weight"], mistake), np.array(seen), dropped


def compute(config, w, ids, decoder_ids, mistake=None):
    read, encoder_seen, encoder_dropped = stack(config, w, "encoder", config["num_layers"], ids, None, mistake)
    x, decoder_seen, decoder_dropped = stack(
        config, w, "decoder", config["num_decoder_layers"], decoder_ids, read, mistake)
    tied = config.get("tie_word_embeddings", True)
    if (tied and mistake != HEAD_NOT_SCALED) or mistake == HEAD_SCALED:
        x = x / np.sqrt(config["d_model"])
    logits = x @ w["shared.weight" if tied else "lm_head.weight"].T
    return logits, encoder_seen, decoder_seen, encoder_dropped, decoder_dropped


def check(folder, mistakes):
    config, w, golden = read_fixture(folder)
    logits, *seen, encoder_dropped, decoder_dropped = compute(config, w, golden["ids"], golden["decoder_ids"])
    kept = np.load(folder / "logits.npy")
    kit.require_same("logits of the second computation", logits, kept)
    for name, values in zip(("encoder", "decoder"), seen):
        kit.require_same(f"{name} of the second computation", values, np.load(folder / f"{name}_hidden.npy"))
    for name, dropped in (("encoder", encoder_dropped), ("decoder", decoder_dropped)):
        routes = golden[f"{name}_routes"]
        if {block: [bool(d) for d in full] for block, full in dropped.items()} != {
            block: made["dropped"] for block, made in routes.items()}:
            raise SystemExit(f"{name}: the second computation drops other tokens")
        print(f"  {name}: drops {sum(int(full.sum()) for full in dropped.values())} tokens, the same ones")
    if "greedy" in golden:
        text = [config["decoder_start_token_id"]] + golden["greedy"]
        again = [int(t) for t in compute(config, w, golden["prompt"], text[:-1])[0].argmax(axis=1)]
        if again != golden["greedy"]:
            raise SystemExit("the continuation of the second computation differs")
        print(f"  continuation of the second computation: the same {len(again)} tokens, {len(set(again))} different")
    for mistake in mistakes:
        wrong = compute(config, w, golden["ids"], golden["decoder_ids"], mistake)[0]
        kit.require_apart(mistake, wrong, kept, SEEN)
