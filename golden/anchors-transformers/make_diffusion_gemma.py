"""Makes the anchor of diffusion-gemma: a seeded tiny model through `transformers`, and what it computes in f64.

    python make_diffusion_gemma.py FOLDER

writes FOLDER/diffusion-gemma-anchor.gguf (F32, names and keys as llama.cpp's draft converter writes them) and
FOLDER/diffusion-gemma-anchor.f64.safetensors. Needs torch, transformers >= 5.13, gguf, safetensors, numpy; no network.
Made with transformers 5.24.0 and torch 2.15.0.

The model computes in f64 throughout: transformers widens norms, soft-max, RoPE and the head to f32 by name, and with
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
from transformers import DynamicCache  # noqa: E402
from transformers.models.diffusion_gemma import generation_diffusion_gemma as generation  # noqa: E402
from transformers.models.diffusion_gemma import modeling_diffusion_gemma as modeling  # noqa: E402
from transformers.models.diffusion_gemma.configuration_diffusion_gemma import (  # noqa: E402
    DiffusionGemmaTextConfig,
)

SEED = 20
PROMPT, CANVAS, VOCAB, WINDOW = 21, 8, 160, 8
PATTERN = [True, False, True, False]
ARCH = "diffusion-gemma"


def text_config():
    config = DiffusionGemmaTextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=len(PATTERN),
        num_attention_heads=4,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        head_dim=16,
        global_head_dim=32,
        sliding_window=WINDOW,
        layer_types=["sliding_attention" if w else "full_attention" for w in PATTERN],
        max_position_embeddings=256,
        num_experts=6,
        top_k_experts=2,
        moe_intermediate_size=48,
    )
    return config


def fill(decoder, encoder):
    """Every number from one generator, rounded to F32 so that the file holds it exactly."""
    generator = torch.Generator().manual_seed(SEED)

    def bell(tensor, deviation):
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * deviation
        tensor.copy_(torch.from_numpy(values.numpy().astype(np.float32).astype(np.float64)))

    def even(tensor, middle, reach):
        values = middle + (2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1) * reach
        tensor.copy_(torch.from_numpy(values.numpy().astype(np.float32).astype(np.float64)))

    with torch.no_grad():
        for name, tensor in sorted(decoder.named_parameters()):
            part = name.split(".")[-2:]
            if part[-1] == "scale":
                even(tensor, 8.0, 2.0)
            elif part[-1] == "per_expert_scale":
                even(tensor, 1.0, 0.25)
            elif part[0] == "k_norm":
                even(tensor, 1.5 / tensor.shape[0] ** 0.5, 0.1)
            elif "norm" in part[0]:
                even(tensor, 1.0, 0.2)
            elif part[0] == "embed_tokens":
                bell(tensor, 1.5 / tensor.shape[1] ** 0.5)
            else:
                bell(tensor, 1.0 / tensor.shape[-1] ** 0.5)
        own = dict(decoder.named_parameters())
        for name, tensor in encoder.named_parameters():
            tensor.copy_(own[name])
        for layer in [*decoder.layers, *encoder.layers]:
            even(layer.layer_scalar, 0.75, 0.25)


def write_gguf(path, config, decoder, encoder):
    w = gguf.GGUFWriter(path, ARCH)
    full = config.per_layer_config[PATTERN.index(False)]
    narrow = config.per_layer_config[PATTERN.index(True)]
    key = lambda name: f"{ARCH}.{name}"  # noqa: E731
    w.add_name("diffusion-gemma-anchor")
    for name, value in [
        ("block_count", config.num_hidden_layers),
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("expert_feed_forward_length", config.moe_intermediate_size),
        ("expert_count", config.num_experts),
        ("expert_used_count", config.top_k_experts),
        ("attention.head_count", config.num_attention_heads),
        ("attention.key_length", full.head_dim),
        ("attention.value_length", full.head_dim),
        ("attention.key_length_swa", narrow.head_dim),
        ("attention.value_length_swa", narrow.head_dim),
        ("attention.sliding_window", config.sliding_window),
        ("attention.shared_kv_layers", 0),
        ("embedding_length_per_layer_input", 0),
        ("rope.dimension_count", full.head_dim),
        ("rope.dimension_count_swa", narrow.head_dim),
        ("vocab_size", config.vocab_size),
    ]:
        w.add_uint32(key(name), value)
    rope = config.rope_parameters
    for name, value in [
        ("attention.layer_norm_rms_epsilon", config.rms_norm_eps),
        ("final_logit_softcapping", config.final_logit_softcapping),
        ("rope.freq_base", rope["full_attention"]["rope_theta"]),
        ("rope.freq_base_swa", rope["sliding_attention"]["rope_theta"]),
    ]:
        w.add_float32(key(name), value)
    w.add_array(
        key("attention.head_count_kv"),
        [config.per_layer_config[i].num_key_value_heads for i in range(len(PATTERN))],
    )
    w.add_array(key("attention.sliding_window_pattern"), PATTERN)
    w.add_bool(key("attention.causal"), False)
    w.add_uint32("diffusion.canvas_length", CANVAS)
    w.add_uint32("diffusion.eb_max_steps", 48)
    w.add_float32("diffusion.eb_t_min", 0.4)
    w.add_float32("diffusion.eb_t_max", 0.8)
    w.add_float32("diffusion.eb_entropy_bound", 0.1)
    w.add_uint32("diffusion.eb_stability_threshold", 1)
    w.add_float32("diffusion.eb_confidence_threshold", 0.005)

    def add(name, tensor):
        w.add_tensor(name, np.ascontiguousarray(tensor.detach().numpy().astype(np.float32)))

    add("token_embd.weight", decoder.embed_tokens.weight)
    add("output_norm.weight", decoder.norm.weight)
    rotated = int(rope["full_attention"]["partial_rotary_factor"] * full.head_dim) // 2
    still = full.head_dim // 2 - rotated
    w.add_tensor("rope_freqs.weight", np.array([1.0] * rotated + [1e30] * still, dtype=np.float32))
    conditioning = decoder.self_conditioning
    add("self_cond_pre_norm.weight", conditioning.pre_norm.weight)
    for part in ["gate", "up", "down"]:
        add(f"self_cond_{part}.weight", getattr(conditioning, f"{part}_proj").weight)
    for i, layer in enumerate(decoder.layers):
        attention, router = layer.self_attn, layer.router
        for name, tensor in [
            ("attn_norm.weight", layer.input_layernorm.weight),
            ("attn_q.weight", attention.q_proj.weight),
            ("attn_k.weight", attention.k_proj.weight),
            ("attn_v.weight", attention.v_proj.weight if attention.v_proj is not None else None),
            ("attn_q_norm.weight", attention.q_norm.weight),
            ("attn_k_norm.weight", attention.k_norm.weight),
            ("attn_output.weight", attention.o_proj.weight),
            ("post_attention_norm.weight", layer.post_attention_layernorm.weight),
            ("ffn_norm.weight", layer.pre_feedforward_layernorm.weight),
            ("ffn_gate.weight", layer.mlp.gate_proj.weight),
            ("ffn_up.weight", layer.mlp.up_proj.weight),
            ("ffn_down.weight", layer.mlp.down_proj.weight),
            ("post_ffw_norm_1.weight", layer.post_feedforward_layernorm_1.weight),
            ("pre_ffw_norm_2.weight", layer.pre_feedforward_layernorm_2.weight),
            ("post_ffw_norm_2.weight", layer.post_feedforward_layernorm_2.weight),
            ("post_ffw_norm.weight", layer.post_feedforward_layernorm.weight),
            ("ffn_gate_inp.weight", router.proj.weight),
            ("ffn_gate_inp.scale", router.scale),
            ("ffn_gate_up_exps.weight", layer.experts.gate_up_proj),
            ("ffn_down_exps.weight", layer.experts.down_proj),
            ("ffn_down_exps.scale", router.per_expert_scale),
            ("layer_output_scale.weight", layer.layer_scalar),
            ("enc_layer_output_scale.weight", encoder.layers[i].layer_scalar),
        ]:
            if tensor is not None:
                add(f"blk.{i}.{name}", tensor)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Record:
    """Keys and values as attention gets them, before any cache drops rows, and the routers' choices."""

    def __init__(self, tensors):
        self.tensors, self.phase = tensors, None
        self.seen = {}

    def keep(self, name, value):
        value = value.detach().numpy()
        if value.dtype.kind == "f":
            value = value.astype(np.float64)
        self.tensors[f"{self.phase}.{name}"] = np.ascontiguousarray(value)

    def kv(self, layer, k, v):
        # [1, heads, rows, head] -> [rows, heads, head]
        self.keep(f"k.{layer}", k[0].transpose(0, 1))
        self.keep(f"v.{layer}", v[0].transpose(0, 1))

    def watch(self, cache, decoder, encoder):
        update = cache.update

        def updated(k, v, layer, *args, **kwargs):
            self.kv(layer, k, v)
            return update(k, v, layer, *args, **kwargs)

        cache.update = updated
        for i, layer in enumerate(decoder.layers):
            append = layer.self_attn.append_to_cache

            def appended(cache, k, v, i=i, append=append):
                self.kv(i, k, v)
                return append(cache, k, v)

            layer.self_attn.append_to_cache = appended
        for model in [decoder, encoder]:
            for i, layer in enumerate(model.layers):
                layer.router.register_forward_hook(
                    lambda _m, _a, out, i=i: self.keep(f"experts.{i}", out[2].to(torch.int32))
                )


def main():
    folder = Path(sys.argv[1])
    torch.manual_seed(SEED)
    config = text_config()
    decoder = decoder_of(config)
    encoder = modeling.DiffusionGemmaEncoderTextModel(config).double().eval()
    for model in [decoder, encoder]:
        for module in model.modules():
            if hasattr(module, "config"):
                # The plain loops: other ways are for narrower types.
                module.config._attn_implementation = "eager"
                module.config._experts_implementation = "eager"
    fill(decoder, encoder)
    write_gguf(folder / "diffusion-gemma-anchor.gguf", config, decoder, encoder)

    tensors = {}
    record = Record(tensors)
    cache = DynamicCache(config=config)
    record.watch(cache, decoder, encoder)
    generator = torch.Generator().manual_seed(SEED + 1)
    draw = lambda n: torch.randint(0, VOCAB, (1, n), generator=generator)  # noqa: E731
    cap = config.final_logit_softcapping

    def encode(phase, tokens):
        record.phase = phase
        tensors[f"{phase}.tokens"] = tokens[0].numpy().astype(np.int32)
        with torch.no_grad():
            encoder(input_ids=tokens, cache=cache)

    def denoise(phase, tokens, conditioning=None):
        record.phase = phase
        tensors[f"{phase}.tokens"] = tokens[0].numpy().astype(np.int32)
        with torch.no_grad():
            out = decoder(
                decoder_input_ids=tokens, cache=cache, self_conditioning_logits=conditioning
            ).last_hidden_state
            logits = torch.tanh(out @ decoder.embed_tokens.weight.T / cap) * cap
        tensors[f"{phase}.logits"] = logits[0].numpy()
        return logits

    # As the file has them.
    coolest, hottest = float(np.float32(0.4)), float(np.float32(0.8))
    schedule = generation.LinearTemperatureScheduleLogitsProcessor(coolest, hottest, 48)
    ones = torch.ones(1)
    tensors["temperatures"] = np.array([1.0 / float(schedule(None, ones, n)) for n in range(48, 0, -1)])

    encode("prompt", draw(PROMPT))
    first = denoise("step0", draw(CANVAS))
    second = denoise("step1", draw(CANVAS), schedule(None, first, 48))
    denoise("step2", draw(CANVAS), schedule(None, second, 47))
    encode("next", second.argmax(-1))
    denoise("next0", draw(CANVAS))

    # The sampler's acceptance, on rows from certain to flat.
    sharp = torch.randn((1, 24, 64), generator=generator) * torch.linspace(0.5, 24.0, 24)[None, :, None]
    for i, bound in enumerate([0.1, 1.0, 5.0]):
        sampler = generation.EntropyBoundSampler(generation.EntropyBoundSamplerConfig(bound), 24, 64, 48)
        sampler.accept_canvas(torch.zeros((1, 24), dtype=torch.int64), torch.ones((1, 24), dtype=torch.int64), sharp, 1)
        tensors[f"accepted.{i}"] = sampler.accepted_token_mask[0].numpy().astype(np.uint8)
    tensors["rows"] = sharp[0].numpy()
    tensors["entropies"] = torch.distributions.Categorical(logits=sharp).entropy()[0].numpy()
    save_file(tensors, folder / "diffusion-gemma-anchor.f64.safetensors")
    for name, tensor in sorted(tensors.items()):
        print(name, tensor.dtype, tensor.shape)


def decoder_of(config):
    """The decoder without a vision tower around it, as `DiffusionGemmaDecoderModel` takes a whole configuration."""
    from transformers import Gemma4VisionConfig
    from transformers.models.diffusion_gemma.configuration_diffusion_gemma import DiffusionGemmaConfig

    vision = Gemma4VisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
    whole = DiffusionGemmaConfig(text_config=config, vision_config=vision, canvas_length=CANVAS)
    return modeling.DiffusionGemmaDecoderModel(whole).double().eval()


if __name__ == "__main__":
    main()
