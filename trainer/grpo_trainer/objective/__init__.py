"""The number that an optimizer step makes smaller, from the log-probs of the sampled tokens."""
