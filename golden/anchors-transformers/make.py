"""Makes the anchors of qwen3, gemma3 and llada-moe: seeded tiny models through `transformers`, and what they compute in
f64.

    python make.py FOLDER

writes FOLDER/NAME-anchor.gguf (F32, names and keys as llama.cpp's converter writes them) and
FOLDER/NAME-anchor.f64.safetensors. Needs torch, transformers 5.x, gguf, safetensors, numpy; no network. Made with
transformers 5.24.0 and torch 2.15.0.

`transformers` has no llada-moe. Its layers are those of `qwen3_moe` without normalised expert weights, which the mask
makes bidirectional.

The models compute in f64 throughout: transformers widens norms, soft-max, RoPE and routers to f32 by name, and with
these names standing for f64 nothing is rounded to 24 bits on the way.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch

# Before transformers is imported, since its modules take the names when they are loaded, too.
torch.float32 = torch.float64
torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)

from safetensors.numpy import save_file  # noqa: E402
from transformers import (  # noqa: E402
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

TOKENS, VOCAB, CONTEXT = 24, 160, 256

# Part of a layer in transformers and in the file.
ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
DENSE = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def qwen3():
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    names = {**ATTENTION, "post_attention_layernorm": "ffn_norm", **DENSE}
    return "qwen3", Qwen3ForCausalLM(config), names, {"rope.freq_base": 1e6}, None


def gemma3():
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=24,
        query_pre_attn_scalar=24,
        sliding_window=8,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    names = {
        **ATTENTION,
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        **DENSE,
    }
    keys = {"rope.freq_base": 1e6, "attention.sliding_window": 8, "final_logit_softcapping": 30.0}
    return "gemma3", Gemma3ForCausalLM(config), names, keys, None


def llada_moe():
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4},
        tie_word_embeddings=False,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    names = {**ATTENTION, "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"}
    keys = {
        "rope.freq_base": 5e4,
        "expert_count": 6,
        "expert_used_count": 2,
        "expert_feed_forward_length": 48,
    }
    everything = torch.zeros(1, 1, TOKENS, TOKENS)
    return "llada-moe", Qwen3MoeForCausalLM(config), names, keys, everything


def fill(model, seed, norms_hold):
    """Every number from one generator, rounded to F32 so that the file holds it exactly. `norms_hold` is what a norm
    adds to its weight, and the file has the sum."""
    generator = torch.Generator().manual_seed(seed)

    def put(tensor, values, add=0.0):
        narrow = values.numpy().astype(np.float32).astype(np.float64)
        tensor.copy_(torch.from_numpy(narrow - add))

    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            if "norm" in name:
                values = 1.0 + (2 * torch.rand(tensor.shape, generator=generator) - 1) * 0.2
                put(tensor, values, norms_hold)
            else:
                spread = 1.5 if "embed" in name or "lm_head" in name or name.endswith("gate.weight") else 1.0
                put(tensor, torch.randn(tensor.shape, generator=generator) * spread / tensor.shape[-1] ** 0.5)


def write_gguf(path, arch, model, names, keys, norms_hold):
    config = model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_name(f"{arch}-anchor")
    common = {
        "block_count": config.num_hidden_layers,
        "context_length": CONTEXT,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": config.head_dim,
        "vocab_size": VOCAB,
    }
    for name, value in {**common, **keys}.items():
        add = w.add_float32 if isinstance(value, float) else w.add_uint32
        add(f"{arch}.{name}", value)
    # A vocabulary as the other anchors have it.
    special = ["<pad>", "<eos>", "<mask>", "<bos>"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(special + [chr(0x21 + i) if i < 90 else f"t{i}" for i in range(VOCAB - 4)])
    w.add_token_types([3] * 4 + [1] * (VOCAB - 4))
    w.add_token_merges(["a b"])
    w.add_bos_token_id(3)
    w.add_eos_token_id(1)
    w.add_pad_token_id(0)
    w.add_add_bos_token(False)
    if arch == "llada-moe":
        w.add_bool("diffusion.shift_logits", False)
        w.add_mask_token_id(2)
    state = dict(model.named_parameters())

    def tensor(name, values, norm=False):
        values = (values.detach() + (norms_hold if norm else 0.0)).numpy()
        narrow = values.astype(np.float32)
        assert np.array_equal(narrow.astype(np.float64), values), f"{name} is not F32"
        w.add_tensor(name, np.ascontiguousarray(narrow))

    tensor("token_embd.weight", state.pop("model.embed_tokens.weight"))
    tensor("output_norm.weight", state.pop("model.norm.weight"), norm=True)
    if not config.tie_word_embeddings:
        tensor("output.weight", state.pop("lm_head.weight"))
    for i in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            values = state.pop(f"model.layers.{i}.{theirs}.weight")
            tensor(f"blk.{i}.{ours}.weight", values, norm="norm" in theirs)
        if arch == "llada-moe":
            both = state.pop(f"model.layers.{i}.mlp.experts.gate_up_proj")
            gate, up = both.chunk(2, dim=1)
            tensor(f"blk.{i}.ffn_gate_exps.weight", gate)
            tensor(f"blk.{i}.ffn_up_exps.weight", up)
            tensor(f"blk.{i}.ffn_down_exps.weight", state.pop(f"model.layers.{i}.mlp.experts.down_proj"))
    assert not state, f"not written: {sorted(state)}"
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def routers(model):
    """Notes what each router gives: logits `[tokens, experts]` and the chosen experts `[tokens, used]`."""
    noted = []
    for layer in model.model.layers:
        gate = getattr(layer.mlp, "gate", None)
        if gate is not None:
            gate.register_forward_hook(lambda _, __, given: noted.append((given[0], given[2])))
    return noted


def make(folder, seed, arch, model, names, keys, mask):
    # Gemma's norms multiply by 1 + w, and converters write the sum.
    norms_hold = 1.0 if arch == "gemma3" else 0.0
    model.eval()
    fill(model, seed, norms_hold)
    write_gguf(folder / f"{arch}-anchor.gguf", arch, model, names, keys, norms_hold)
    tokens = torch.arange(TOKENS) * 37 % (VOCAB - 8) + 5
    noted = routers(model)
    # One that keeps all positions, windows or not.
    cache = DynamicCache()
    with torch.no_grad():
        given = model(input_ids=tokens[None], attention_mask=mask, cache=cache, use_cache=True)
    assert given.logits.dtype == torch.float64
    out = {"tokens": tokens.numpy().astype(np.int32), "logits": given.logits[0].numpy()}
    for i, layer in enumerate(cache.layers):
        for part, values in [("k", layer.keys), ("v", layer.values)]:
            out[f"{part}.{i}"] = np.ascontiguousarray(values[0].transpose(0, 1).numpy())
            assert out[f"{part}.{i}"].shape[0] == TOKENS and out[f"{part}.{i}"].dtype == np.float64
    for i, (logits, chosen) in enumerate(noted):
        out[f"router.{i}"] = logits.numpy()
        out[f"experts.{i}"] = chosen.numpy().astype(np.int32)
    save_file(out, folder / f"{arch}-anchor.f64.safetensors")
    print(arch, "logits", out["logits"].shape, "spread", out["logits"].std(), sorted(out))


if __name__ == "__main__":
    where = Path(sys.argv[1])
    for number, build in enumerate([qwen3, gemma3, llada_moe]):
        make(where, 30 + number, *build())
