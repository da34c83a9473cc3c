"""Weight files: GGUF and folders of safetensors, both read through memory maps."""
