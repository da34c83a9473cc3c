"""Tool calls in generated text: how each family of models writes them, and reading them back as they stream."""
