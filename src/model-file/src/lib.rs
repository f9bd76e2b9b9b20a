//! Model files: GGUF in and out, hyper-parameters, tokenizers and generated models.
