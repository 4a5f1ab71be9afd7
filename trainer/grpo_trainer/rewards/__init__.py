"""Reward functions: calling them, running those of files apart, and combining their scores."""
