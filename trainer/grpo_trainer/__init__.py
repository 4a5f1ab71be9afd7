"""GRPO training of language models on MLX."""
