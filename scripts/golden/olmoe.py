#!/usr/bin/env python3
"""Makes or checks the golden fixtures of OlmoeForCausalLM. Usage: olmoe.py FOLDER [--check]

Sources: "OLMoE: Open Mixture-of-Experts Language Models" (Muennighoff et al., 2024) for the architecture: every layer
sparse, dropless choice by the token, no shared expert, queries and keys normalised; the cards and configurations of
OLMoE-1B-7B-0924 and -0125 for names, fields and values; the causal decoder's rules in causal.py. In this family:

- no projection has a bias (attention_bias false), and nothing is clipped (clip_qkv null);
- the whole projected query vector goes through one rms over all its heads * head_dim elements (q_norm), and the whole
  projected key vector through another (k_norm), before they are split into heads and turn; values do not;
- intermediate_size is that of an expert; there is no moe_intermediate_size;
- norm_topk_prob is false: the gates are the plain probabilities;
- the configuration published first, of 0924, has no rms_norm_eps; it means 1e-5.

olmoe is like the published files of 0924 in its fields. olmoe-gqa shares keys and values between heads, so that k_norm
is shorter than q_norm, takes 8 of 16 experts, and has rms_norm_eps. Embeddings are small here, so that the epsilon
shows in the logits.
"""

import sys

sys.dont_write_bytecode = True

import causal
import kit
import second

COMMON = {
    "architectures": ["OlmoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clip_qkv": None,
    "eos_token_id": 128,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 12,
    "max_position_embeddings": 128,
    "model_type": "olmoe",
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts": 12,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "pad_token_id": 1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.01,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 131,
}
CONFIGS = {
    "olmoe": COMMON,
    "olmoe-gqa": COMMON | {
        "hidden_size": 48,
        "intermediate_size": 10,
        "num_attention_heads": 6,
        "num_experts": 16,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
    },
}
SEEDS = {"olmoe": 6, "olmoe-gqa": 10}


class Decoder(causal.Decoder):
    default_eps = 1e-5

    def is_sparse(self, layer):
        return True

    def project(self, at, x):
        query = self.rms(self.w[at + "q_proj.weight"] @ x, self.w[at + "q_norm.weight"])
        key = self.rms(self.w[at + "k_proj.weight"] @ x, self.w[at + "k_norm.weight"])
        value = self.w[at + "v_proj.weight"] @ x
        return query.reshape(self.heads, -1), key.reshape(self.kv_heads, -1), value.reshape(self.kv_heads, -1)

    def feed_forward(self, layer, x):
        return self.experts(layer, x)


def shapes(config):
    made = causal.outer_shapes(config, 0.02)
    for layer in range(config["num_hidden_layers"]):
        made |= causal.attention_shapes(config, layer)
        for n in "qk":
            at = f"model.layers.{layer}.self_attn.{n}_"
            made[at + "norm.weight"] = causal.vector(made[at + "proj.weight"][0][0], 1.3, 0.4)
        made |= causal.expert_shapes(config, layer, config["intermediate_size"])
    return made


def make(name, folder):
    config = CONFIGS[name]
    causal.make(name, Decoder, config, shapes(config), SEEDS[name], folder)


def check(name, folder):
    second.check(folder, [
        second.RENORMALISED,
        second.NO_HEAD_NORM,
        second.NORM_BY_HEAD,
        second.INTERLEAVED,
        second.LARGER_THETA,
        second.SMALLER_EPS,
    ])


if __name__ == "__main__":
    kit.command_line(__doc__, CONFIGS, make, check)
