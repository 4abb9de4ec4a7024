#!/usr/bin/env python3
"""Makes or checks the golden fixtures of Qwen2MoeForCausalLM. Usage: qwen2_moe.py FOLDER [--check]

Sources: the Qwen1.5-MoE announcement (Qwen team, 2024) and the Qwen2 technical report (Yang et al., 2024) for the
architecture; the cards and configurations of Qwen1.5-MoE-A2.7B and Qwen2-57B-A14B for names, fields and values; the
causal decoder's rules in causal.py. In this family:

- queries, keys and values have a bias, the output projection has none (the cards: "QKV bias");
- a head has hidden_size / num_attention_heads elements;
- beside the routed experts, of moe_intermediate_size each, every token runs a shared expert of
  shared_expert_intermediate_size, whose output is multiplied by sigmoid(shared_expert_gate(x)), one number a token;
- both published models have norm_topk_prob false: the gates are the plain probabilities and add up to less than one;
- layer i is sparse where it is not in mlp_only_layers and (i + 1) is a multiple of decoder_sparse_step; the others
  have one feed-forward of intermediate_size, and neither router nor shared expert;
- sliding_window means nothing while use_sliding_window is false. The published files say so with a window; here the
  window is shorter than the sequences, so that using it shows.

qwen2-moe is like the published files (which have no mlp_only_layers), with grouped queries as in Qwen2-57B-A14B.
qwen2-moe-mixed has dense layers for both reasons, gates that are divided by their sum, and no grouped queries.
Embeddings are small, so that the epsilon shows in the logits.
"""

import sys

sys.dont_write_bytecode = True

import causal
import kit
import second

COMMON = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 130,
    "decoder_sparse_step": 1,
    "eos_token_id": 130,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 36,
    "max_position_embeddings": 128,
    "max_window_layers": 1,
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 12,
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts": 10,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 28,
    "sliding_window": 5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 131,
}
CONFIGS = {
    "qwen2-moe": COMMON,
    "qwen2-moe-mixed": COMMON | {
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "norm_topk_prob": True,
        "num_experts": 9,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 6,
        "num_key_value_heads": 4,
    },
}
SEEDS = {"qwen2-moe": 32, "qwen2-moe-mixed": 2}


def is_sparse(config, layer):
    return layer not in config.get("mlp_only_layers", []) and (layer + 1) % config["decoder_sparse_step"] == 0


class Decoder(causal.Decoder):
    default_eps = 1e-6

    def is_sparse(self, layer):
        return is_sparse(self.config, layer)

    def project(self, at, x):
        query, key, value = (self.w[f"{at}{n}_proj.weight"] @ x + self.w[f"{at}{n}_proj.bias"] for n in "qkv")
        return query.reshape(self.heads, -1), key.reshape(self.kv_heads, -1), value.reshape(self.kv_heads, -1)

    def feed_forward(self, layer, x):
        at = f"model.layers.{layer}.mlp."
        if not self.is_sparse(layer):
            return self.gated(at, x)
        openness = kit.sigmoid(self.w[at + "shared_expert_gate.weight"] @ x)
        return self.experts(layer, x) + openness * self.gated(at + "shared_expert.", x)


def shapes(config):
    made = causal.outer_shapes(config, 0.02)
    hidden = config["hidden_size"]
    for layer in range(config["num_hidden_layers"]):
        made |= causal.attention_shapes(config, layer)
        for n in "qkv":
            at = f"model.layers.{layer}.self_attn.{n}_proj."
            made[at + "bias"] = causal.vector(made[at + "weight"][0][0], 0.0, 0.6)
        at = f"model.layers.{layer}.mlp."
        if is_sparse(config, layer):
            made |= causal.expert_shapes(config, layer, config["moe_intermediate_size"])
            made |= causal.gated_shapes(at + "shared_expert.", config["shared_expert_intermediate_size"], hidden)
            made[at + "shared_expert_gate.weight"] = causal.matrix(1, hidden)
        else:
            made |= causal.gated_shapes(at, config["intermediate_size"], hidden)
    return made


def make(name, folder):
    config = CONFIGS[name]
    causal.make(name, Decoder, config, shapes(config), SEEDS[name], folder)


def check(name, folder):
    second.check(folder, [
        second.RENORMALISED if name == "qwen2-moe" else second.NOT_RENORMALISED,
        second.NO_BIAS,
        second.OPEN_SHARED_EXPERT,
        second.WINDOW,
        second.INTERLEAVED,
        second.SMALLER_THETA,
        second.LARGER_EPS,
    ])


if __name__ == "__main__":
    kit.command_line(__doc__, CONFIGS, make, check)
