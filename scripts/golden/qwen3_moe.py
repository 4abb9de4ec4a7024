#!/usr/bin/env python3
"""Makes or checks the golden fixtures of Qwen3MoeForCausalLM. Usage: qwen3_moe.py FOLDER [--check]

Sources: the Qwen3 technical report (Yang et al., 2025) for the architecture: no QKV bias any more, normalised queries
and keys, no shared expert; the cards and configurations of Qwen3-30B-A3B and Qwen3-235B-A22B for names, fields and
values; the causal decoder's rules in causal.py. In this family:

- no projection has a bias (attention_bias false);
- head_dim is a field of its own, and heads * head_dim need not be hidden_size;
- each head of the queries and of the keys goes through rms over its head_dim elements, with one weight [head_dim]
  (q_norm, k_norm) for all heads of a layer, before it turns; values do not;
- there is no shared expert, and the published models have norm_topk_prob true, 8 of 128 experts;
- which layers are sparse is as in Qwen2-MoE.

qwen3-moe takes 4 of 12 experts. qwen3-moe-top8 takes 8 of 16, ties the head to the embedding, and has a dense layer.
"""

import sys

sys.dont_write_bytecode = True

import causal
import kit
import second

COMMON = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 129,
    "decoder_sparse_step": 1,
    "eos_token_id": 130,
    "head_dim": 12,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "max_position_embeddings": 128,
    "max_window_layers": 3,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 14,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 12,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 131,
}
CONFIGS = {
    "qwen3-moe": COMMON,
    "qwen3-moe-top8": COMMON | {
        "head_dim": 10,
        "hidden_size": 24,
        "mlp_only_layers": [0],
        "moe_intermediate_size": 10,
        "num_attention_heads": 6,
        "num_experts": 16,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 3,
        "rope_theta": 10000000.0,
        "tie_word_embeddings": True,
    },
}
SEEDS = {"qwen3-moe": 22, "qwen3-moe-top8": 57}


def is_sparse(config, layer):
    return layer not in config["mlp_only_layers"] and (layer + 1) % config["decoder_sparse_step"] == 0


class Decoder(causal.Decoder):
    default_eps = 1e-6

    def is_sparse(self, layer):
        return is_sparse(self.config, layer)

    def project(self, at, x):
        queries = (self.w[at + "q_proj.weight"] @ x).reshape(self.heads, self.head_dim)
        keys = (self.w[at + "k_proj.weight"] @ x).reshape(self.kv_heads, self.head_dim)
        values = (self.w[at + "v_proj.weight"] @ x).reshape(self.kv_heads, self.head_dim)
        queries = [self.rms(query, self.w[at + "q_norm.weight"]) for query in queries]
        keys = [self.rms(key, self.w[at + "k_norm.weight"]) for key in keys]
        return queries, keys, values

    def feed_forward(self, layer, x):
        return self.experts(layer, x) if self.is_sparse(layer) else self.gated(f"model.layers.{layer}.mlp.", x)


def shapes(config):
    made = causal.outer_shapes(config, 0.3 if config["tie_word_embeddings"] else 0.02)
    for layer in range(config["num_hidden_layers"]):
        made |= causal.attention_shapes(config, layer)
        for n in "qk":
            made[f"model.layers.{layer}.self_attn.{n}_norm.weight"] = causal.vector(config["head_dim"], 1.3, 0.4)
        if is_sparse(config, layer):
            made |= causal.expert_shapes(config, layer, config["moe_intermediate_size"])
        else:
            at = f"model.layers.{layer}.mlp."
            made |= causal.gated_shapes(at, config["intermediate_size"], config["hidden_size"])
    return made


def make(name, folder):
    config = CONFIGS[name]
    causal.make(name, Decoder, config, shapes(config), SEEDS[name], folder)


def check(name, folder):
    # With the embedding as its head the embedding cannot be so small that the epsilon shows.
    second.check(folder, ([] if CONFIGS[name]["tie_word_embeddings"] else [second.LARGER_EPS]) + [
        second.NOT_RENORMALISED,
        second.NO_HEAD_NORM,
        second.NORM_AFTER_TURNING,
        second.INTERLEAVED,
        second.SMALLER_THETA,
    ])


if __name__ == "__main__":
    kit.command_line(__doc__, CONFIGS, make, check)
