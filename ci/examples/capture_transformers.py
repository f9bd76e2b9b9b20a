"""Writes a ggml-parity capture: capture_transformers.py MODEL CASE OUT.safetensors TOKEN..."""

import sys

import numpy as np
from safetensors.numpy import save_file


def write_capture(path, tokens, logits, caches, case, pairs=False):
    """tokens [n]; logits [n, vocab]; caches: for each layer K (after RoPE) and V, each [kv_heads, n, head_dim].
    pairs: RoPE turns neighbours in the GGUF file (general.architecture llama), where transformers turns halves."""
    tensors = {"tokens": np.asarray(tokens, np.int32), "logits": np.ascontiguousarray(logits, np.float32)}
    for layer, (k, v) in enumerate(caches):
        if pairs:
            k = np.stack(np.split(np.asarray(k), 2, axis=-1), axis=-1).reshape(np.shape(k))
        tensors[f"k.{layer}"] = np.ascontiguousarray(np.swapaxes(k, 0, 1), np.float32)
        tensors[f"v.{layer}"] = np.ascontiguousarray(np.swapaxes(v, 0, 1), np.float32)
    save_file(tensors, path, metadata={"case": case})


if __name__ == "__main__":
    import torch
    from transformers import AutoModelForCausalLM

    name, case, out, *ids = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
    with torch.no_grad():
        result = model(torch.tensor([[int(i) for i in ids]]), use_cache=True)
    cache = result.get("past_key_values") or result["cache"]  # the name that newer versions have
    caches = [(layer.keys[0].numpy(), layer.values[0].numpy()) for layer in cache.layers]
    write_capture(out, [int(i) for i in ids], result.logits[0].numpy(), caches, case, model.config.model_type == "llama")
